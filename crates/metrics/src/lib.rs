//! Counters and histograms, each declared once with name, unit and help.
