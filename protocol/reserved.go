package protocol

import "strings"

// reservedNames are what events, subjects and logs call the parts of Handoff and
// what surrounds it. An agent of such a name, in any case, would be taken for that
// part: an event by "supervisor" is a decision of the supervisors.
var reservedNames = []string{System, "supervisor", "holder", "system", "operator", "engine", "gateway", "door"}

// Reserved tells whether a name, in any case, is reserved for a part of Handoff.
// Human is a name that an agent may have; any other way to write it is reserved.
func Reserved(name string) bool {
	for _, reserved := range reservedNames {
		if strings.EqualFold(name, reserved) {
			return true
		}
	}
	return name != Human && strings.EqualFold(name, Human)
}

// CheckAgent is CheckID for the name of an agent, which is not Reserved.
func CheckAgent(field, name string) error {
	if err := CheckID(field, name); err != nil {
		return err
	}
	return CheckBy(field, name)
}

// CheckBy refuses a Reserved name for the author of an act. A person has any
// other name, or none.
func CheckBy(field, name string) error {
	if Reserved(name) {
		return Errorf(CodeReserved, field, "%s is a reserved name: no agent or person is called that, in capitals or not", name)
	}
	return nil
}
