package schema

import "github.com/agenthandoff/handoff/protocol"

// Limits of an output schema. A submission with a schema over one of them is
// refused with CodeTooLarge.
const (
	// OutputSchemaBytesMax is the length of the schema as JSON.
	OutputSchemaBytesMax = 128 << 10
	// OutputSchemaObjectsMax counts objects, true and false: all that may be a
	// subschema. The compiler's time grows with the square of them.
	OutputSchemaObjectsMax = 4096
	// OutputSchemaDepthMax bounds how deep the schema is nested. It also bounds a chain of
	// schemas for one and the same value ($ref, allOf, not and so on).
	OutputSchemaDepthMax = protocol.DepthMax
	// OutputSchemaPathBytesMax bounds the length of all paths to its objects
	// together; the compiler keeps each of them several times.
	OutputSchemaPathBytesMax = 1 << 20
	// OutputSchemaReferencesMax counts $ref, $id and $anchor.
	OutputSchemaReferencesMax = 512
	// OutputSchemaPatternsMax counts regular expressions (pattern, patternProperties).
	OutputSchemaPatternsMax = 256
	// OutputPatternBytesMax is the length of one regular expression.
	OutputPatternBytesMax = 2 << 10
	// OutputPatternInstructionsMax is the size of all regular expressions when they
	// are compiled, in instructions of Go's package regexp. A repetition counts as
	// often as it may occur; a class of characters counts one, and one more for every
	// eight ranges in it; \p{…} and \P{…} count 80 more, once.
	OutputPatternInstructionsMax = 20_000
	// OutputSchemaExpansionMax is how many schemas one value may have to be checked
	// against, references and alternatives followed.
	OutputSchemaExpansionMax = 10_000
)

// Limits of the check of one result. A result over one of them fails its attempt
// with CodeOutputSchema.
const (
	// OutputValuesMax counts the values in a body: members, items and the body itself.
	OutputValuesMax = 500_000
	// OutputStepsMax is what a check may cost. A value costs about 64 steps for each
	// schema that it may have to be compared with, and 4 more for each level that it
	// lies deep; a regular expression costs a step for 4 instructions at each byte of
	// the text. All alternatives count, whichever of them holds. A step takes a few
	// nanoseconds and at most stepBytes of memory.
	OutputStepsMax = 20_000_000
)

const (
	// cacheBytesMax is what the compiled schemas that are kept may take, as sizeOf
	// estimates it.
	cacheBytesMax = 32 << 20
	// Checks over one of these take turns in a process, so that their memory does
	// not add up.
	bodyBytesLight = 64 << 10
	stepsLight     = 500_000
	// stepBytes is the memory that one step may take while a check is under way.
	stepBytes = 8
)
