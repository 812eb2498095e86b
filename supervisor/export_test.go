package supervisor

// RecallMost is for tests.
const RecallMost = recallMost
