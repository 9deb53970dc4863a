//! Runs the rules. A condition becomes a finding once it has held for long enough.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::rules::RULES;
use crate::{Finding, Snapshot};

/// The time between two looks, in milliseconds. The coarse clock may show up to `BIT` less.
const LOOK: u64 = 1000;
const BIT: u64 = 100;
/// Rates are measured over three looks.
const WINDOW: u64 = 3 * LOOK - BIT;

/// Two snapshots, for rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks<'s> {
    pub(crate) now: &'s Snapshot,
    /// Some seconds before.
    pub(crate) before: &'s Snapshot,
}

impl Looks<'_> {
    /// The growth of a counter between the two snapshots.
    pub(crate) fn grown(&self, of: fn(&Snapshot) -> u64) -> u64 {
        of(self.now).saturating_sub(of(self.before))
    }

    /// The growth of a counter per second.
    pub(crate) fn rate(&self, of: fn(&Snapshot) -> u64) -> f64 {
        let elapsed = self.now.now.saturating_sub(self.before.now).max(1);
        self.grown(of) as f64 * 1000.0 / elapsed as f64
    }
}

/// The snapshots of the last seconds, and the conditions that held in them.
#[derive(Debug, Default)]
pub struct Judge {
    looks: VecDeque<Snapshot>,
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    finding: Finding,
    /// When its condition held first and last, in milliseconds of the monotonic clock.
    first: u64,
    last: u64,
    appears: u64,
    stays: u64,
}

/// A condition that holds for a subject.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) level: crate::Level,
    pub(crate) subject: String,
    pub(crate) text: String,
    /// Since when it holds, in milliseconds since 1970, if the rule knows.
    pub(crate) since: Option<u64>,
}

impl Judge {
    /// Whether no condition held in the last look.
    pub fn is_calm(&self) -> bool {
        self.known.is_empty()
    }

    /// Takes the last snapshot as that of `now`, in milliseconds of the monotonic clock: nothing has changed since.
    pub fn skip_to(&mut self, now: u64) {
        let last = self.looks.pop_back();
        self.looks.clear();
        self.looks.extend(last.map(|look| Snapshot { now, ..look }));
    }

    /// Takes a snapshot and returns the findings, the worst first.
    pub fn look(&mut self, snapshot: Snapshot) -> Vec<Finding> {
        let (at, now) = (snapshot.at, snapshot.now);
        self.looks.push_back(snapshot);
        // The oldest snapshot that is kept is as old as the window, or the first of all.
        while self.looks.get(1).is_some_and(|look| look.now + WINDOW <= now) {
            self.looks.pop_front();
        }
        let (Some(before), Some(newest)) = (self.looks.front(), self.looks.back()) else {
            return Vec::new();
        };
        let looks = Looks { now: newest, before };
        for rule in RULES {
            for held in (rule.find)(looks) {
                let Held { level, subject, text, since } = held;
                let is = |known: &&mut Known| {
                    known.finding.rule == rule.name && known.finding.subject == subject
                };
                match self.known.iter_mut().find(is) {
                    Some(known) => {
                        known.last = now;
                        let since = since.unwrap_or(known.finding.since);
                        let rule = known.finding.rule.clone();
                        known.finding = Finding { rule, level, subject, text, since };
                    }
                    None => self.known.push(Known {
                        finding: Finding {
                            rule: Cow::Borrowed(rule.name),
                            level,
                            subject,
                            text,
                            since: since.unwrap_or(at),
                        },
                        first: now,
                        last: now,
                        appears: (rule.appears * LOOK).saturating_sub(BIT),
                        stays: rule.stays * LOOK + LOOK / 2,
                    }),
                }
            }
        }
        // A condition that has not become a finding is forgotten when it does not hold.
        self.known.retain(|known| {
            known.last == now
                || (known.is_finding() && now < known.last.saturating_add(known.stays))
        });
        let found = self.known.iter().filter(|known| known.is_finding());
        let mut found: Vec<Finding> = found.map(|known| known.finding.clone()).collect();
        found.sort_by(|a, b| (b.level, a.since).cmp(&(a.level, b.since)));
        found
    }
}

impl Known {
    fn is_finding(&self) -> bool {
        self.last.saturating_sub(self.first) >= self.appears
    }
}
