package schema

import "github.com/agenthandoff/handoff/protocol"

// Limits of an output schema. A submission with a schema that exceeds one of them is refused with
// CodeTooLarge.
const (
	// outputSchemaBytesMax is the length of the schema as JSON.
	outputSchemaBytesMax = 128 << 10
	// outputSchemaObjectsMax counts objects, true and false: everything that may be a subschema. The
	// compiler's time is quadratic in their number.
	outputSchemaObjectsMax = 4096
	// outputSchemaDepthMax bounds the nesting of the schema. It also bounds a chain of schemas for one
	// and the same value ($ref, allOf, not and so on).
	outputSchemaDepthMax = protocol.DepthMax
	// outputSchemaPathBytesMax bounds the total length of the paths to its objects; the compiler keeps
	// each of them several times.
	outputSchemaPathBytesMax = 1 << 20
	// outputSchemaReferencesMax counts $ref, $id and $anchor.
	outputSchemaReferencesMax = 512
	// outputSchemaPatternsMax counts regular expressions (pattern, patternProperties).
	outputSchemaPatternsMax = 256
	// outputPatternBytesMax is the length of one regular expression.
	outputPatternBytesMax = 2 << 10
	// outputPatternInstructionsMax is the size of all compiled regular expressions, in instructions of
	// Go's package regexp. A repetition counts as often as it may occur; a class of characters counts
	// one, and one more for every eight ranges in it; \p{…} and \P{…} count 80 more, once.
	outputPatternInstructionsMax = 20_000
	// outputSchemaExpansionMax is how many schemas may apply to one value, including references and
	// alternatives.
	outputSchemaExpansionMax = 10_000
)

// Limits of the check of one result. A result that exceeds one of them fails its attempt with
// CodeOutputSchema.
const (
	// outputValuesMax counts the values in a body: members, items and the body itself.
	outputValuesMax = 500_000
	// outputStepsMax is the maximum cost of a check. A value costs about 64 steps for each schema that
	// is applied to it, and 8 more for each level of the body's depth; a regular expression costs a step
	// for 4 instructions at each byte of the text. A step takes some nanoseconds and at most 8 bytes of
	// memory.
	outputStepsMax = 20_000_000
)

const (
	// cacheBytesMax bounds the memory of cached schemas, as estimated by sizeOf.
	cacheBytesMax = 32 << 20
	// Checks with a larger body or more steps run one at a time in a process, so that their memory
	// does not add up.
	bodyBytesLight = 64 << 10
	stepsLight     = 500_000
)
