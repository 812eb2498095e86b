package api

var AvailabilityOf = availabilityOf
