//! Events of findings that last.

use super::*;

const PATH: &str = "/apis/events.k8s.io/v1/namespaces/b/events";

#[test]
fn an_old_event_of_a_finding_that_lasts_gets_a_series() {
    let dir = Dir::new();
    let (process, told) = start(&dir, sites("b", 1), &[]);
    let first: Value = serde_json::from_str(&written(&told, "POST", PATH).body).unwrap();
    assert_eq!((&first["reason"], &first["series"]), (&json!("NoService"), &Value::Null));
    drop(process);
    for (time, count) in [("eventTime", 2), ("lastObservedTime", 8)] {
        let mut event = first.clone();
        let past = json!("2020-01-01T00:00:00.000000Z");
        match time {
            "eventTime" => event[time] = past,
            _ => event["series"] = json!({ "count": 7, (time): past }),
        }
        let mut objects = sites("b", 1);
        objects.insert(PATH.to_owned(), vec![event]);
        let dir = Dir::new();
        let (_process, told) = start(&dir, objects, &[]);
        let patch = written(&told, "PATCH", PATH);
        assert_eq!(patch.path.rsplit('/').next(), first["metadata"]["name"].as_str());
        let patch: Value = serde_json::from_str(&patch.body).unwrap();
        assert_eq!(patch["series"]["count"], count);
        assert!(patch["series"]["lastObservedTime"].as_str() > first["eventTime"].as_str());
    }
}
