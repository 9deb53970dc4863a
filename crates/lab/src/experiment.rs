//! The type of an experiment, and the accept policies that most experiments compare.

use crate::finding::LabFinding;
use crate::lab::Lab;

/// An experiment of `weir lab`.
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The question that it answers.
    pub(crate) question: &'static str,
    /// Published results that answer the question.
    pub(crate) published: &'static str,
    /// Runs it. An error is a message for the user.
    pub(crate) run: fn(&Lab) -> Result<LabFinding, String>,
}

/// weir's accept policies, under the names of the published experiments.
pub(crate) const POLICIES: &[(&str, &str)] = &[
    ("blocking accept", "blocking"),
    ("EPOLLEXCLUSIVE", "exclusive"),
    ("re-add every 16 accepts", "rotate"),
    ("re-add every accept", "rotate=1"),
    ("shared epoll", "shared_epoll"),
    ("plain epoll", "herd"),
    ("reuseport", "reuseport"),
    ("reuseport by load", "reuseport_load"),
    ("fair", "fair"),
];

/// The most different policies, for experiments that take long.
pub(crate) const MAIN: &[(&str, &str)] = &[
    ("EPOLLEXCLUSIVE", "exclusive"),
    ("re-add every 16 accepts", "rotate"),
    ("reuseport", "reuseport"),
    ("fair", "fair"),
];
