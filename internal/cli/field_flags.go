package cli

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/internal/explain"
)

// durationValue is a flag that is a duration, days included.
type durationValue struct {
	d        *time.Duration
	negative bool // allowed: the package's own validation says what is wrong with it
}

func (v durationValue) String() string {
	if v.d == nil || *v.d == 0 {
		return ""
	}
	return explain.Duration(*v.d)
}

func (v durationValue) Type() string { return "duration" }

func (v durationValue) Set(text string) error {
	d, err := parseDuration(text)
	if err != nil {
		return err
	}
	if d < 0 && !v.negative {
		return fmt.Errorf("%q is negative", text)
	}
	*v.d = d
	return nil
}

// durationVar declares a flag of the command itself: negative is a usage error.
func durationVar(fs *pflag.FlagSet, d *time.Duration, name string, def time.Duration, usage string) {
	*d = def
	fs.Var(durationValue{d: d}, name, usage)
}

// fieldVar declares a flag that becomes a field of a package, a profile or an
// answer, which know what is too long or negative and say so by field.
func fieldVar(fs *pflag.FlagSet, d *time.Duration, name, usage string) {
	fs.Var(durationValue{d: d, negative: true}, name, usage)
}

// fieldFlags are flags that are fields of a T. One that is given sets its field.
type fieldFlags[T any] struct {
	fs    *pflag.FlagSet
	given []func(*T)
}

// onGiven says what a flag that is given sets.
func (f *fieldFlags[T]) onGiven(name string, set func(*T)) {
	f.given = append(f.given, func(to *T) {
		if f.fs.Changed(name) {
			set(to)
		}
	})
}

// setGiven sets the fields of all flags that are given.
func (f *fieldFlags[T]) setGiven(to *T) {
	for _, set := range f.given {
		set(to)
	}
}

// text declares a flag that is a field.
func (f *fieldFlags[T]) text(name, usage string, field func(*T) *string) {
	value := f.fs.String(name, "", usage)
	f.onGiven(name, func(to *T) { *field(to) = *value })
}

// texts declares a flag whose values are added to a field.
func (f *fieldFlags[T]) texts(name, usage string, field func(*T) *[]string) {
	values := f.fs.StringArray(name, nil, usage)
	f.onGiven(name, func(to *T) { *field(to) = append(*field(to), *values...) })
}

// millis declares a flag that is a field in milliseconds.
func (f *fieldFlags[T]) millis(name, usage string, field func(*T) *int64) {
	value := new(time.Duration)
	fieldVar(f.fs, value, name, usage)
	f.onGiven(name, func(to *T) { *field(to) = value.Milliseconds() })
}

// orNew returns what a field points to, and makes it first where there is none.
func orNew[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}
