package protocol

// FleetKey is the key of the fleet's settings among the agents: a reserved name, which no agent
// has.
const FleetKey = System

// Fleet are the settings that hold for all agents of an engine, one field for each subject. An
// agent's profile wins over them, and a package over both.
type Fleet struct {
	Policy    PolicyOverrides `json:"policy,omitzero"` // defaults for all that is offered
	UpdatedAt Time            `json:"updated_at,omitzero"`
}

// Validate checks the settings: their policies are within the limits.
func (f Fleet) Validate() error {
	if err := f.Policy.validate("policy"); err != nil {
		return err
	}
	return nil
}

// DecodeFleet reads the settings of a fleet as strictly as DecodePackage reads a package.
func DecodeFleet(body []byte) (Fleet, error) {
	var f Fleet
	if err := decodeStrict(body, "fleet", FleetBytesMax, 0, fleetShape, &f); err != nil {
		return Fleet{}, err
	}
	return f, nil
}
