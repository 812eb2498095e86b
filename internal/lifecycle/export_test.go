package lifecycle

var InExperiment = inVariant
