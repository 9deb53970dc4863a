//! Keys of the controller's ConfigMap that weir refuses. Such a key keeps its earlier value or is
//! left out, and the rest is served.
//! A key that may keep clients out is never left out by a pod that starts: the pod serves nothing
//! until the key is right.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::refusals::OFFER_AGAIN;
use crate::report::{Finding, ObjectId, Severity};
use crate::translate::{CONFIG_MAP_KEY, names};

/// Keys and their values.
type Map = BTreeMap<String, String>;

/// Whether a key may restrict access. Without it, weir would serve clients that it keeps out.
fn restricts_access(key: &str) -> bool {
    key.ends_with("-snippet") || key.starts_with("block-") || key == "proxy-real-ip-cidr"
}

#[derive(Debug)]
struct Refused {
    value: String,
    why: String,
    since: Instant,
}

/// The refused keys of the map, and the search for keys at fault.
#[derive(Debug, Default)]
pub struct RefusedKeys {
    refused: BTreeMap<String, Refused>,
    /// The map of the last configuration that weir accepted.
    accepted: Option<Map>,
    /// The keys that are left out on trial, to learn whether one of them is at fault; and weir's
    /// message before.
    trial: Option<(Map, String)>,
    /// Keys that are not at fault: weir refused the configuration without them, too.
    cleared: Map,
    /// Keys that were left out together after a trial. They are offered again one by one; `offered`
    /// is the one offered now.
    doubtful: Vec<String>,
    offered: Option<String>,
}

impl RefusedKeys {
    /// Replaces the value of each refused key by its earlier value, or removes the key.
    pub fn apply(&mut self, map: &mut Map) {
        self.refused.retain(|key, refused| map.get(key) == Some(&refused.value));
        self.cleared.retain(|key, value| map.get(key) == Some(value));
        let tried = self.trial.iter().flat_map(|(map, _)| map);
        let refused = self.refused.iter().filter(|(key, _)| self.offered.as_ref() != Some(*key));
        let refused = refused.map(|(key, one)| (key, &one.value));
        for (key, value) in refused.chain(tried) {
            match self.accepted.as_ref().and_then(|good| good.get(key)) {
                Some(before) if before != value => drop(map.insert(key.clone(), before.clone())),
                _ => drop(map.remove(key)),
            }
        }
    }

    /// Looks for the key at fault after weir has refused a configuration with this map. `owner` is
    /// the owner of the refused line.
    /// Returns whether another map is to be offered.
    pub fn blame(&mut self, map: &Map, owner: Option<&ObjectId>, why: &str) -> bool {
        if owner.is_none_or(|owner| owner.kind == CONFIG_MAP_KEY) && self.offered.take().is_some() {
            self.offered = self.doubtful.pop();
            return true;
        }
        // weir reports an unknown variable without a line.
        let variable =
            why.split_once("unknown \"").and_then(|(_, rest)| rest.split_once("\" variable"));
        match (owner, variable) {
            (Some(owner), _) if owner.kind != CONFIG_MAP_KEY => return false,
            (Some(owner), _) if self.refuse(map, &owner.name, why) => return true,
            (None, Some((variable, _))) => {
                let all = map.iter().filter(|(_, text)| names(text, variable));
                let all: Vec<&String> = all.map(|(key, _)| key).collect();
                return all.into_iter().any(|key| self.refuse(map, key, why));
            }
            _ => {}
        }
        if let Some((tried, _)) = self.trial.take() {
            self.cleared.extend(tried);
            return false;
        }
        let is_new = |key: &str, value: &str| match &self.accepted {
            Some(good) => good.get(key).is_none_or(|before| before != value),
            // No map is known to be good. Of a first map, only snippets can be wrong for weir, and
            // weir must not serve without them.
            None => false,
        };
        let suspects = map.iter().filter(|(key, value)| {
            is_new(key, value)
                && self.cleared.get(*key) != Some(value)
                && !self.refused.contains_key(*key)
        });
        let suspects: Map = suspects.map(|(key, value)| (key.clone(), value.clone())).collect();
        let any = !suspects.is_empty();
        self.trial = any.then(|| (suspects, why.to_owned()));
        any
    }

    /// Refuses keys that the translation cannot read and that may restrict access. Returns whether
    /// there is a new one.
    pub fn judge(&mut self, map: &Map, found: &[Finding]) -> bool {
        let is_wrong = |f: &&Finding| f.object.kind == "ConfigMap" && f.severity == Severity::Error;
        let wrong = found.iter().filter(is_wrong).filter(|f| restricts_access(&f.about));
        wrong.filter(|f| self.refuse(map, &f.about, &f.message)).count() > 0
    }

    /// Refuses all snippets of a first map. weir has refused the configuration without a line, and
    /// no object is at fault. Returns whether there is a new one.
    pub fn blame_snippets(&mut self, map: &Map, why: &str) -> bool {
        let keys = map.keys().filter(|key| self.accepted.is_none() && key.ends_with("-snippet"));
        let keys: Vec<&String> = keys.collect();
        keys.into_iter().filter(|key| self.refuse(map, key, why)).count() > 0
    }

    /// The first refused key without which nothing may be served, with the reason.
    pub fn blocking(&self) -> Option<(&str, &str)> {
        let mut held =
            self.refused.iter().filter(|(key, _)| self.accepted.is_none() && restricts_access(key));
        held.next().map(|(key, refused)| (key.as_str(), refused.why.as_str()))
    }

    fn refuse(&mut self, map: &Map, key: &str, why: &str) -> bool {
        if self.refused.contains_key(key) {
            // The earlier value is in its place, and is refused, too.
            return self.accepted.as_mut().is_some_and(|good| good.remove(key).is_some());
        }
        let Some(value) = map.get(key).cloned() else { return false };
        let (why, since) = (why.to_owned(), Instant::now());
        self.refused.insert(key.to_owned(), Refused { value, why, since });
        true
    }

    /// Records that weir serves a configuration with this map, in which refused keys are replaced.
    /// Returns whether another map is to be offered, since this one was a trial.
    pub fn taken(&mut self, map: &Map) -> bool {
        self.accepted = Some(map.clone());
        if let Some((tried, why)) = self.trial.take() {
            let since = Instant::now();
            self.doubtful = tried.keys().cloned().collect();
            for (key, value) in tried {
                self.refused.insert(key, Refused { value, why: why.clone(), since });
            }
            if self.doubtful.len() > 1 {
                self.offered = self.doubtful.pop();
            }
            return true;
        }
        let Some(good) = self.offered.take() else { return false };
        self.refused.remove(&good);
        self.offered = self.doubtful.pop();
        true
    }

    /// The findings about the refused keys of the map `(namespace, name)`.
    pub fn findings(&self, (namespace, name): &(String, String)) -> Vec<Finding> {
        let told = self.refused.iter().map(|(key, refused)| {
            let before = self.accepted.as_ref().is_some_and(|good| good.contains_key(key));
            let instead = match before {
                true => "the value before stays in service",
                false if self.accepted.is_none() && restricts_access(key) => {
                    "it may keep clients out, so this pod waits until it is right"
                }
                false => "it is left out",
            };
            Finding {
                object: ObjectId {
                    kind: "ConfigMap",
                    namespace: namespace.clone(),
                    name: name.clone(),
                },
                severity: Severity::Error,
                reason: "Refused",
                about: key.clone(),
                message: format!("{instead}: {}", refused.why),
            }
        });
        told.collect()
    }

    /// Whether a key is due to be offered again. A file that it names may exist by now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.refused.values().any(|one| one.waited(now) > OFFER_AGAIN)
    }

    /// Forgets refusals that are due, so that their keys are offered again.
    pub fn forget_old(&mut self, now: Instant) {
        self.refused.retain(|_, one| one.waited(now) <= OFFER_AGAIN);
        self.cleared.clear();
    }
}

impl Refused {
    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn applied(keys: &mut RefusedKeys, pairs: &[(&str, &str)]) -> Map {
        let mut made = map(pairs);
        keys.apply(&mut made);
        made
    }

    #[test]
    fn a_key_that_owns_the_line_is_left_out_or_stays_as_it_was() {
        let owner = |key: &str| ObjectId {
            kind: CONFIG_MAP_KEY,
            namespace: String::new(),
            name: key.to_owned(),
        };
        let mut keys = RefusedKeys::default();
        let first = [("gzip-level", "3"), ("http-snippet", "nonsense;")];
        assert!(keys.blame(&map(&first), Some(&owner("http-snippet")), "why"));
        assert_eq!(applied(&mut keys, &first), map(&[("gzip-level", "3")]));
        let told = &keys.findings(&("a".to_owned(), "map".to_owned()))[0];
        let waits = "it may keep clients out, so this pod waits until it is right: why";
        assert_eq!((told.about.as_str(), told.message.as_str()), ("http-snippet", waits));
        assert_eq!(keys.blocking(), Some(("http-snippet", "why")));

        let good = applied(&mut keys, &[("http-snippet", "good;")]);
        assert_eq!(good, map(&[("http-snippet", "good;")]));
        assert!(!keys.taken(&good));
        let next = [("http-snippet", "worse;")];
        assert!(keys.blame(&map(&next), Some(&owner("http-snippet")), "why"));
        assert_eq!(applied(&mut keys, &next), good);
        assert_eq!(keys.blocking(), None);
        // What was good may be refused later.
        assert!(keys.blame(&good, Some(&owner("http-snippet")), "why"));
        assert_eq!(applied(&mut keys, &next), Map::new());
        assert!(!keys.blame(&Map::new(), Some(&owner("http-snippet")), "why"));
        let other = ObjectId { kind: "Ingress", ..owner("http-snippet") };
        assert!(!keys.blame(&map(&next), Some(&other), "why"));
    }

    #[test]
    fn a_key_that_names_a_variable_that_there_is_not_is_at_fault() {
        let mut keys = RefusedKeys::default();
        let all = [("log-format-upstream", "$a $nosuch"), ("server-snippet", "set $b $nosuch2;")];
        assert!(keys.blame(&map(&all), None, "unknown \"nosuch\" variable"));
        assert_eq!(applied(&mut keys, &all), map(&all[1..]));
        assert!(!keys.blame(&map(&all[1..]), None, "unknown \"other\" variable"));
    }

    #[test]
    fn keys_that_cannot_be_read_stay_as_they_were_if_they_may_keep_clients_out() {
        let finding = |key: &str| Finding {
            object: ObjectId { kind: "ConfigMap", namespace: "a".to_owned(), name: "m".to_owned() },
            severity: Severity::Error,
            reason: "InvalidKey",
            about: key.to_owned(),
            message: "no".to_owned(),
        };
        let mut keys = RefusedKeys::default();
        let good = map(&[("block-cidrs", "10.0.0.0/8")]);
        keys.taken(&good);
        let next = [("block-cidrs", "10.0.0.0/8, x"), ("syslog-host", "-")];
        let found = [finding("block-cidrs"), finding("syslog-host")];
        assert!(keys.judge(&map(&next), &found));
        let left = applied(&mut keys, &next);
        assert_eq!(left, map(&[("block-cidrs", "10.0.0.0/8"), ("syslog-host", "-")]));
        assert!(!keys.judge(&left, &found[1..]));
        let told = keys.findings(&("a".to_owned(), "m".to_owned()));
        assert_eq!(told[0].message, "the value before stays in service: no");
    }

    #[test]
    fn without_a_line_what_is_new_in_the_map_is_tried() {
        let mut keys = RefusedKeys::default();
        let good = map(&[("proxy-body-size", "1m")]);
        keys.taken(&good);
        let next = [("hide-headers", "X-A"), ("proxy-body-size", "2m")];
        assert!(keys.blame(&map(&next), None, "no"));
        assert_eq!(applied(&mut keys, &next), good);
        // Another key was at fault: these are served, and are not tried again.
        assert!(!keys.blame(&good, None, "no"));
        assert_eq!(applied(&mut keys, &next), map(&next));
        assert!(!keys.blame(&map(&next), None, "no"));
        // They are tried again with another value.
        let next = [("hide-headers", "X-B"), ("proxy-body-size", "2m")];
        assert_eq!(applied(&mut keys, &next), map(&next));
        assert!(keys.blame(&map(&next), None, "no"));
        let left = applied(&mut keys, &next);
        assert_eq!(left, map(&[("proxy-body-size", "2m")]));
        assert!(keys.taken(&left));
        assert_eq!(applied(&mut keys, &next), left);
        assert_eq!(keys.findings(&("a".to_owned(), "map".to_owned())).len(), 1);
        keys.forget_old(Instant::now());
        assert_eq!(applied(&mut keys, &next), left);
    }

    #[test]
    fn of_several_new_keys_the_one_at_fault_is_left_out_alone() {
        let mut keys = RefusedKeys::default();
        assert!(!keys.taken(&Map::new()));
        let new = [("a", "1"), ("b", "2"), ("c", "3")];
        let is_taken = |map: &Map| !map.contains_key("b");
        let mut offers = 0;
        let left = loop {
            offers += 1;
            let map = applied(&mut keys, &new);
            match is_taken(&map) {
                true if keys.taken(&map) => {}
                true => break map,
                false => assert!(keys.blame(&map, None, "no")),
            }
        };
        assert_eq!((left, offers), (map(&[("a", "1"), ("c", "3")]), 6));
        let told = keys.findings(&("a".to_owned(), "map".to_owned()));
        assert_eq!(told.iter().map(|one| one.about.as_str()).collect::<Vec<_>>(), ["b"]);
    }
}
