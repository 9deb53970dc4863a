//! What a Gateway or a ListenerSet says of its parts.

use serde_json::{Value, json};

use super::{class, gateway, http, listener, object, of, statuses, web};
use crate::{Settings, Snapshot, Translation, translate};

fn translated(objects: &[Value], settings: &Settings) -> Translation {
    let mut snapshot = Snapshot::default();
    for object in objects {
        assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
    }
    translate(&snapshot, settings)
}

#[test]
fn a_route_that_is_not_accepted_does_not_count() {
    let route = |name: &str, filter: &str| {
        let rules = json!([{ "filters": [{ "type": filter, "requestRedirect": {} }] }]);
        let spec = json!({ "parentRefs": [{ "name": "web" }], "rules": rules });
        object("HTTPRoute", "a", name, 1, spec)
    };
    let (good, bad) = (route("good", "RequestRedirect"), route("bad", "ExtensionRef"));
    let all = statuses(vec![class(), web(json!([http("l", 80)])), good, bad]);
    let accepted = |name: &str| {
        let (_, parents) = all.routes.iter().find(|(id, _)| id.name == name).unwrap();
        of(&parents[0].conditions, "Accepted")
    };
    assert_eq!(
        (accepted("good"), accepted("bad")),
        ("Accepted".into(), "!UnsupportedValue".into())
    );
    assert_eq!(listener(&all, "web", "l").attached_routes, 1);
}

#[test]
fn a_gateway_sums_up_the_references_of_its_listeners() {
    let kinds = |kind: &str| {
        let mut one = http("l", 80);
        one["allowedRoutes"] = json!({ "kinds": [{ "kind": kind }] });
        statuses(vec![class(), web(json!([http("first", 81), one]))])
    };
    assert_eq!(gateway(&kinds("HTTPRoute"), "ResolvedRefs"), "ResolvedRefs");
    assert_eq!(gateway(&kinds("TCPRoute"), "ResolvedRefs"), "!ListenersNotResolved");
}

#[test]
fn a_listener_set_is_not_programmed_before_its_gateway() {
    let told = |addresses: Value, settings: &Settings| {
        let spec = json!({ "gatewayClassName": "weir", "listeners": [http("own", 80)],
            "addresses": addresses, "allowedListeners": { "namespaces": { "from": "Same" } } });
        let set = json!({ "parentRef": { "name": "web" }, "listeners": [http("more", 81)] });
        let objects = [
            class(),
            object("Gateway", "a", "web", 0, spec),
            object("ListenerSet", "a", "set", 1, set),
        ];
        let made = translated(&objects, settings);
        let set = made.statuses.listener_sets.values().next().unwrap();
        let of_set = |kind| of(&set.conditions, kind);
        (gateway(&made.statuses, "Programmed"), of_set("Accepted"), of_set("Programmed"))
    };
    let words = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    let (usual, waits) =
        (Settings::default(), Settings { awaits_address: true, ..Settings::default() });
    assert_eq!(told(json!([]), &usual), words("Programmed", "Accepted", "Programmed"));
    let late = words("!AddressNotAssigned", "Accepted", "!ParentNotProgrammed");
    assert_eq!(told(json!([]), &waits), late);
    let refused = words("!AddressNotUsable", "Accepted", "!ParentNotProgrammed");
    assert_eq!(told(json!([{ "value": "192.0.2.9" }]), &usual), refused);
    let kind = json!([{ "type": "Hostname", "value": "x.test" }]);
    let unknown = words("!Invalid", "!ParentNotAccepted", "!ParentNotProgrammed");
    assert_eq!(told(kind, &usual), unknown);
}

#[test]
fn a_gateway_has_the_addresses_of_its_own_load_balancer() {
    let objects = [class(), web(json!([http("l", 80)]))];
    let own = |list: &[&str]| {
        let list = list.iter().map(|one| (*one).to_owned()).collect();
        [(("a".to_owned(), "web".to_owned()), list)].into()
    };
    let others = [(("b".to_owned(), "web".to_owned()), vec!["192.0.2.7".to_owned()])].into();
    for (balancers_of, given, addresses, programmed) in [
        (None, "", &["192.0.2.1"][..], "Programmed"),
        (Some(own(&["192.0.2.5"])), "", &["192.0.2.5"], "Programmed"),
        // The Service is not made yet, or its load balancer.
        (Some(others), "", &[], "!AddressNotAssigned"),
        (Some(own(&[])), "", &[], "!AddressNotAssigned"),
        // weir itself has the address.
        (Some(own(&["192.0.2.5"])), "10.0.0.1", &["10.0.0.1"], "Programmed"),
    ] {
        let settings = Settings {
            gateway_addresses: vec![given.to_owned()],
            published: vec!["192.0.2.1".to_owned()],
            balancers_of,
            ..Settings::default()
        };
        let made = translated(&objects, &settings);
        assert_eq!(made.statuses.gateways.values().next().unwrap().addresses, addresses);
        assert_eq!(gateway(&made.statuses, "Programmed"), programmed, "{addresses:?}");
    }
}

#[test]
fn a_route_names_the_fields_that_are_left_out() {
    let told = |rule: Value| {
        let spec = json!({ "parentRefs": [{ "name": "web" }], "rules": [rule] });
        let all = statuses(vec![
            class(),
            web(json!([http("l", 80)])),
            object("HTTPRoute", "a", "r", 1, spec),
        ]);
        let condition = &all.routes.values().next().unwrap()[0].conditions[0];
        assert_eq!((condition.kind, condition.holds), ("Accepted", true));
        (condition.reason, condition.message.clone())
    };
    let by = |kind: &str| json!({ "sessionPersistence": { "type": kind } });
    let codes = |codes: Value| json!({ "retry": { "codes": codes } });
    let of_session = "left out: sessionPersistence of rule 0: only cookies are supported";
    let of_code = "left out: retry of 418 of rule 0";
    for (rule, wanted) in [
        (by("Cookie"), ("Accepted", "")),
        (by("Header"), ("UnsupportedField", of_session)),
        (codes(json!([503])), ("Accepted", "")),
        (codes(json!([503, 418])), ("UnsupportedField", of_code)),
    ] {
        assert_eq!(told(rule), (wanted.0, wanted.1.to_owned()));
    }
}
