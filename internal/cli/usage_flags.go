package cli

import (
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// usageFlags are the flags that say what an attempt has used so far.
type usageFlags struct {
	usage protocol.Usage
}

func (f *usageFlags) declare(fs *pflag.FlagSet) {
	fs.Int64Var(&f.usage.Tokens, "tokens", 0, "tokens that this attempt has used so far, in all")
	fs.Var((*costValue)(&f.usage.CostMicros), "cost", "what this attempt has cost so far, as 0.03")
}

// declareAll declares the flags of "handoff spend".
func (f *usageFlags) declareAll(fs *pflag.FlagSet) {
	f.declare(fs)
	fs.Int64Var(&f.usage.TokensIn, "tokens-in", 0, "of these, tokens that went into models")
	fs.Int64Var(&f.usage.TokensOut, "tokens-out", 0, "of these, tokens that models have written")
	fs.Int64Var(&f.usage.Calls, "calls", 0, "calls of models so far")
	fs.StringVar(&f.usage.Model, "model", "", "the model that was called last")
}

// given is the usage that the flags say; nil without one.
func (f *usageFlags) given() *protocol.Usage {
	if f.usage == (protocol.Usage{}) {
		return nil
	}
	usage := f.usage
	return &usage
}

// over lays what the flags say over another usage.
func (f *usageFlags) over(usage *protocol.Usage) *protocol.Usage {
	given := f.given()
	if given == nil || usage == nil {
		if given == nil {
			return usage
		}
		return given
	}
	laid := *usage
	if given.Tokens != 0 {
		laid.Tokens = given.Tokens
	}
	if given.CostMicros != 0 {
		laid.CostMicros = given.CostMicros
	}
	return &laid
}

// costValue is a cost in millionths, written as a decimal number.
type costValue int64

func (c *costValue) String() string {
	if *c == 0 {
		return ""
	}
	return explain.Cost(int64(*c))
}

func (c *costValue) Type() string { return "AMOUNT" }

func (c *costValue) Set(text string) error {
	amount, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(amount) || amount < 0 || amount*1e6 > protocol.UsageMax {
		return protocol.Errorf(protocol.CodeInvalid, "", "must be a number from 0 to %d, not %q", protocol.UsageMax/1_000_000, text)
	}
	*c = costValue(math.Round(amount * 1e6))
	return nil
}
