//! Merges the wanted status of an object into the present one. Entries and conditions of other
//! controllers stay, and a condition keeps the time of its last transition.

use serde_json::{Map, Value};

/// The conditions that this program writes. Those that no longer apply are removed.
const OWN: &[&str] = &[
    "Accepted",
    "Conflicted",
    "InsecureFrontendValidationMode",
    "OverlappingTLSConfig",
    "PartiallyInvalid",
    "Programmed",
    "ResolvedRefs",
    "SupportedVersion",
];
/// The most entries of all controllers together that the API allows.
const MOST_PARENTS: usize = 32;
const MOST_ANCESTORS: usize = 16;

/// The status to write; `None` if the present one is up to date. `controller` is this program's
/// name in lists that several controllers share. `now` is the transition time of conditions that
/// change.
pub fn merge(old: &Value, wanted: &Value, controller: &str, now: &str) -> Option<Value> {
    let mut status = old.as_object().cloned().unwrap_or_default();
    for (key, value) in wanted.as_object().into_iter().flatten() {
        let known = old.get(key).unwrap_or(&Value::Null);
        let value = match key.as_str() {
            "conditions" => conditions(known, value, now),
            "listeners" => listeners(known, value, now),
            "parents" => shared(known, value, "parentRef", MOST_PARENTS, (controller, now)),
            "ancestors" => shared(known, value, "ancestorRef", MOST_ANCESTORS, (controller, now)),
            _ => value.clone(),
        };
        status.insert(key.clone(), value);
    }
    let status = Value::Object(status);
    (status != *old).then_some(status)
}

/// Whether a shared list has an entry of this controller.
pub fn has_entry_of(status: &Value, controller: &str) -> bool {
    let list = |key| status.get(key).and_then(Value::as_array).into_iter().flatten();
    list("parents")
        .chain(list("ancestors"))
        .any(|entry| text(entry, "controllerName") == controller)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The wanted conditions, with those of other controllers.
fn conditions(old: &Value, wanted: &Value, now: &str) -> Value {
    let with_time = |one: &Value| {
        let known = list(old).iter().find(|known| text(known, "type") == text(one, "type"));
        let known = known.filter(|known| known.get("status") == one.get("status"));
        let since =
            known.map(|known| text(known, "lastTransitionTime")).filter(|at| !at.is_empty());
        let mut one = one.as_object().cloned().unwrap_or_default();
        one.insert("lastTransitionTime".to_owned(), since.unwrap_or(now).into());
        Value::Object(one)
    };
    let others = list(old).iter().filter(|known| {
        let kind = text(known, "type");
        !OWN.contains(&kind) && !list(wanted).iter().any(|one| text(one, "type") == kind)
    });
    list(wanted).iter().map(with_time).chain(others.cloned()).collect()
}

/// An entry with its conditions. `known` is the present entry.
fn entry(known: Option<&Value>, wanted: &Value, now: &str) -> Value {
    let mut entry: Map<String, Value> = wanted.as_object().cloned().unwrap_or_default();
    let old = known.and_then(|known| known.get("conditions")).unwrap_or(&Value::Null);
    let wanted = wanted.get("conditions").unwrap_or(&Value::Null);
    entry.insert("conditions".to_owned(), conditions(old, wanted, now));
    Value::Object(entry)
}

fn listeners(old: &Value, wanted: &Value, now: &str) -> Value {
    let known =
        |one: &Value| list(old).iter().find(|known| text(known, "name") == text(one, "name"));
    list(wanted).iter().map(|one| entry(known(one), one, now)).collect()
}

/// A list that several controllers share. Entries of others keep their places; this controller's
/// are replaced.
fn shared(
    old: &Value,
    wanted: &Value,
    key: &str,
    most: usize,
    (controller, now): (&str, &str),
) -> Value {
    let same = |a: &Value, b: &Value| a.get(key) == b.get(key);
    let is_own = |one: &Value| text(one, "controllerName") == controller;
    let mut made: Vec<Value> = Vec::new();
    for known in list(old) {
        if !is_own(known) {
            made.push(known.clone());
        } else if let Some(one) = list(wanted).iter().find(|one| same(one, known))
            && !made.iter().any(|done| is_own(done) && same(done, one))
        {
            made.push(entry(Some(known), one, now));
        }
    }
    for one in list(wanted) {
        if !made.iter().any(|done| is_own(done) && same(done, one)) {
            made.push(entry(None, one, now));
        }
    }
    made.truncate(most.max(list(old).len()));
    Value::Array(made)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn condition(kind: &str, status: &str, time: Option<&str>) -> Value {
        let mut one = json!({ "type": kind, "status": status, "reason": "R", "message": "", "observedGeneration": 1 });
        if let Some(time) = time {
            one["lastTransitionTime"] = time.into();
        }
        one
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_last_transition() {
        let wanted = json!({ "conditions": [condition("Accepted", "True", None)] });
        let first = merge(&Value::Null, &wanted, "c", "t1").unwrap();
        assert_eq!(first, json!({ "conditions": [condition("Accepted", "True", Some("t1"))] }));
        assert_eq!(merge(&first, &wanted, "c", "t2"), None);
        let mut later = wanted.clone();
        later["conditions"][0]["observedGeneration"] = 2.into();
        let second = merge(&first, &later, "c", "t2").unwrap();
        assert_eq!(second["conditions"][0]["lastTransitionTime"], "t1");
        later["conditions"][0]["status"] = "False".into();
        let third = merge(&second, &later, "c", "t3").unwrap();
        assert_eq!(third["conditions"][0]["lastTransitionTime"], "t3");
    }

    #[test]
    fn conditions_of_others_stay_and_own_ones_that_are_over_go() {
        let old = json!({ "other": 7, "conditions": [condition("Conflicted", "True", Some("t0")),
            condition("x.test/Theirs", "True", Some("t0"))] });
        let wanted = json!({ "conditions": [condition("Accepted", "True", None)], "listeners": [
            { "name": "l", "attachedRoutes": 1, "conditions": [condition("Accepted", "True", None)] }] });
        let made = merge(&old, &wanted, "c", "t1").unwrap();
        let kinds: Vec<_> = list(&made["conditions"]).iter().map(|one| text(one, "type")).collect();
        assert_eq!(kinds, ["Accepted", "x.test/Theirs"]);
        assert_eq!(made["other"], 7);
        assert_eq!(made["listeners"][0]["conditions"][0]["lastTransitionTime"], "t1");
        // A listener with another name does not inherit the times.
        let mut renamed = wanted.clone();
        renamed["listeners"][0]["name"] = "m".into();
        let made = merge(&made, &renamed, "c", "t2").unwrap();
        assert_eq!(made["listeners"][0]["conditions"][0]["lastTransitionTime"], "t2");
        assert_eq!(made["conditions"][0]["lastTransitionTime"], "t1");
    }

    #[test]
    fn entries_of_other_controllers_stay_where_they_are() {
        let one = |controller: &str, name: &str, time: Option<&str>| {
            json!({ "parentRef": { "name": name }, "controllerName": controller,
                "conditions": [condition("Accepted", "True", time)] })
        };
        let t0 = Some("t0");
        let old = json!({ "parents": [one("c", "a", t0), one("x", "a", t0), one("c", "gone", t0), one("x", "b", t0)] });
        let wanted = json!({ "parents": [one("c", "b", None), one("c", "a", None)] });
        let made = merge(&old, &wanted, "c", "t1").unwrap();
        let all =
            [one("c", "a", t0), one("x", "a", t0), one("x", "b", t0), one("c", "b", Some("t1"))];
        assert_eq!(list(&made["parents"]), all);
        assert_eq!(merge(&made, &wanted, "c", "t2"), None);
        let none = merge(&made, &json!({ "parents": [] }), "c", "t2").unwrap();
        assert_eq!(list(&none["parents"]), [one("x", "a", t0), one("x", "b", t0)]);
        assert!(has_entry_of(&made, "c") && !has_entry_of(&none, "c"));
        // The list does not grow beyond the API's limit.
        let others: Vec<_> = (0..16)
            .map(|n| json!({ "ancestorRef": { "name": n.to_string() }, "controllerName": "x" }))
            .collect();
        let full = json!({ "ancestors": others });
        let wanted = json!({ "ancestors": [{ "ancestorRef": { "name": "a" }, "controllerName": "c", "conditions": [] }] });
        assert_eq!(merge(&full, &wanted, "c", "t1"), None);
    }

    #[test]
    fn a_garbled_status_is_replaced() {
        for old in [
            json!("x"),
            json!({ "conditions": 7, "parents": { "a": 1 } }),
            json!({ "parents": [1, null] }),
        ] {
            let wanted =
                json!({ "conditions": [condition("Accepted", "True", None)], "parents": [] });
            let made = merge(&old, &wanted, "c", "t1").unwrap();
            assert_eq!(made["conditions"][0]["lastTransitionTime"], "t1");
        }
    }
}
