//! Runs the rules, and tells what holds from what has only flickered.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::rules::RULES;
use crate::{Finding, Snapshot};

/// Looks are a second apart and a bit more, but the coarse clock may say a bit less, in milliseconds.
const LOOK: u64 = 1000;
const BIT: u64 = 100;
/// Rates are those of three looks.
const WINDOW: u64 = 3 * LOOK - BIT;

/// Two snapshots, for rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks<'s> {
    pub(crate) now: &'s Snapshot,
    /// Some seconds before.
    pub(crate) before: &'s Snapshot,
}

impl Looks<'_> {
    /// What a counter has grown by between the two.
    pub(crate) fn grown(&self, of: fn(&Snapshot) -> u64) -> u64 {
        of(self.now).saturating_sub(of(self.before))
    }

    /// The same in a second.
    pub(crate) fn rate(&self, of: fn(&Snapshot) -> u64) -> f64 {
        let took = self.now.now.saturating_sub(self.before.now).max(1);
        self.grown(of) as f64 * 1000.0 / took as f64
    }
}

/// What was found lately.
#[derive(Debug, Default)]
pub struct Judge {
    looks: VecDeque<Snapshot>,
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    finding: Finding,
    /// When its condition held first and last, by the clock that is never set.
    first: u64,
    last: u64,
    appears: u64,
    stays: u64,
}

/// What a rule says of a subject.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) level: crate::Level,
    pub(crate) subject: String,
    pub(crate) text: String,
    /// Since when, where the rule knows it.
    pub(crate) since: Option<u64>,
}

impl Judge {
    /// Nothing is wrong, nor did it seem so in the last look.
    pub fn is_calm(&self) -> bool {
        self.known.is_empty()
    }

    /// Nothing has changed since the last look, up to this time by the clock that is never set.
    pub fn skip_to(&mut self, now: u64) {
        let last = self.looks.pop_back();
        self.looks.clear();
        self.looks.extend(last.map(|look| Snapshot { now, ..look }));
    }

    /// What is wrong, the worst first.
    pub fn look(&mut self, snapshot: Snapshot) -> Vec<Finding> {
        let (at, now) = (snapshot.at, snapshot.now);
        self.looks.push_back(snapshot);
        // The oldest that is kept is as old as the window, if there is one.
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
