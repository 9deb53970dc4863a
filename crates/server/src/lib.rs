//! Master, workers, signals and reload; turns policy decisions into engine calls.
