package schema

// The limits that package schema_test needs.
const (
	OutputPatternBytesMax     = outputPatternBytesMax
	OutputSchemaBytesMax      = outputSchemaBytesMax
	OutputSchemaDepthMax      = outputSchemaDepthMax
	OutputSchemaObjectsMax    = outputSchemaObjectsMax
	OutputSchemaPatternsMax   = outputSchemaPatternsMax
	OutputSchemaReferencesMax = outputSchemaReferencesMax
	OutputValuesMax           = outputValuesMax
)
