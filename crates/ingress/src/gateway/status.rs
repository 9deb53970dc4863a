//! The statuses of objects: conditions with the specification's reasons, as plain data.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::features::features;
use super::objects::{GROUP, ParentReference};
use crate::report::ObjectId;

/// A condition of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `Accepted`, `ResolvedRefs`, `Programmed`, ...
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// The reason, one word of the specification.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

impl Condition {
    /// A condition that holds.
    pub fn yes(kind: &'static str, reason: &'static str) -> Condition {
        Condition { kind, holds: true, reason, message: String::new() }
    }

    /// The condition as a text. A good one is a single word. `None` for a bad condition that does
    /// not hold.
    fn shown(&self, good: &mut bool) -> Option<String> {
        let bad = matches!(
            self.kind,
            "Conflicted"
                | "PartiallyInvalid"
                | "OverlappingTLSConfig"
                | "InsecureFrontendValidationMode"
        );
        if bad && !self.holds {
            return None;
        }
        if !bad && self.holds {
            return Some(self.kind.to_owned());
        }
        // Overlapping names are served as the specification says.
        *good &= self.kind == "OverlappingTLSConfig";
        let not = if bad { "" } else { "not " };
        Some(format!("{not}{} ({}: {})", self.kind, self.reason, self.message))
    }

    /// A condition that does not hold.
    pub fn no(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
        Condition { kind, holds: false, reason, message: message.into() }
    }
}

/// The status of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// Kinds of routes that may attach.
    pub supported_kinds: Vec<&'static str>,
    /// The number of attached routes.
    pub attached_routes: u32,
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// A port where a Gateway is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayPort {
    /// The port of the listeners.
    pub number: u16,
    /// UDP in place of TCP.
    pub udp: bool,
    /// The port that weir listens on for it.
    pub target: u16,
}

/// The status of a Gateway or ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// Its own listeners.
    pub listeners: Vec<ListenerStatus>,
    /// The number of ListenerSets attached to a Gateway.
    pub attached_listener_sets: u32,
    /// The addresses of a Gateway: its own, or the published ones.
    pub addresses: Vec<String>,
    /// The ports of a Gateway's listeners, with those of its ListenerSets.
    pub ports: BTreeSet<GatewayPort>,
}

/// The status of an object for one parent: a route's Gateway or ListenerSet, or a Gateway that uses
/// a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct ParentStatus {
    /// The parent, as the object names it.
    pub parent: ParentReference,
    /// The conditions.
    pub conditions: Vec<Condition>,
}

/// The statuses of all objects of Gateway API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statuses {
    /// GatewayClasses.
    pub classes: BTreeMap<ObjectId, Vec<Condition>>,
    /// Gateways.
    pub gateways: BTreeMap<ObjectId, GatewayStatus>,
    /// ListenerSets.
    pub listener_sets: BTreeMap<ObjectId, GatewayStatus>,
    /// Routes, with each parent that weir serves.
    pub routes: BTreeMap<ObjectId, Vec<ParentStatus>>,
    /// Policies, with each Gateway that uses them.
    pub policies: BTreeMap<ObjectId, Vec<ParentStatus>>,
    /// The `metadata.generation` of each object.
    pub generations: BTreeMap<ObjectId, i64>,
}

impl Statuses {
    /// The `status` of each object as in the API, without the times of transitions. `services` says
    /// whether each Gateway gets a Service.
    pub fn documents(&self, controller: &str, services: bool) -> Vec<(ObjectId, Value)> {
        let mut list = Vec::new();
        for (id, conditions) in &self.classes {
            let features: Vec<Value> =
                features(services).map(|feature| json!({ "name": feature })).collect();
            let conditions = self.conditions(id, conditions);
            let document = json!({ "conditions": conditions, "supportedFeatures": features });
            list.push((id.clone(), document));
        }
        for (id, status) in self.gateways.iter().chain(&self.listener_sets) {
            let listeners: Vec<Value> = status.listeners.iter().map(|one| json!({
                "name": one.name,
                "supportedKinds": one.supported_kinds.iter().map(|kind| json!({ "group": GROUP, "kind": kind })).collect::<Vec<_>>(),
                "attachedRoutes": one.attached_routes,
                "conditions": self.conditions(id, &one.conditions),
            })).collect();
            let mut document = json!({ "conditions": self.conditions(id, &status.conditions), "listeners": listeners });
            if id.kind == "Gateway" {
                document["attachedListenerSets"] = status.attached_listener_sets.into();
                document["addresses"] = status
                    .addresses
                    .iter()
                    .map(|a| {
                        let ip = a.parse::<std::net::IpAddr>().is_ok();
                        json!({ "type": if ip { "IPAddress" } else { "Hostname" }, "value": a })
                    })
                    .collect();
            }
            list.push((id.clone(), document));
        }
        let parents = |id: &ObjectId, all: &[ParentStatus], name: &str| -> Vec<Value> {
            all.iter()
                .map(|one| {
                    json!({
                        name: reference(&one.parent),
                        "controllerName": controller,
                        "conditions": self.conditions(id, &one.conditions),
                    })
                })
                .collect()
        };
        for (id, all) in &self.routes {
            list.push((id.clone(), json!({ "parents": parents(id, all, "parentRef") })));
        }
        for (id, all) in &self.policies {
            list.push((id.clone(), json!({ "ancestors": parents(id, all, "ancestorRef") })));
        }
        list
    }

    /// A line for each object and its parts, for people; and whether all conditions are good.
    pub fn table(&self) -> (String, bool) {
        let (mut out, mut good) = (String::new(), true);
        let mut say = |head: String, list: &[Condition]| {
            let words: Vec<String> = list.iter().filter_map(|one| one.shown(&mut good)).collect();
            out.push_str(&format!("{head}: {}\n", words.join(", ")));
        };
        for (id, list) in &self.classes {
            say(format!("{} {}", id.kind, id.name), list);
        }
        for (id, status) in self.gateways.iter().chain(&self.listener_sets) {
            say(id.to_string(), &status.conditions);
            for one in &status.listeners {
                let routes = one.attached_routes;
                say(format!("  listener {} ({routes} routes)", one.name), &one.conditions);
            }
        }
        for (id, parents) in self.routes.iter().chain(&self.policies) {
            for one in parents {
                let section = one.parent.section_name.as_ref().map(|name| format!("/{name}"));
                let parent = format!("{}{}", one.parent.name, section.unwrap_or_default());
                say(format!("{id} at {parent}"), &one.conditions);
            }
        }
        (out, good)
    }

    fn conditions(&self, id: &ObjectId, list: &[Condition]) -> Vec<Value> {
        let generation = self.generations.get(id).copied().unwrap_or_default();
        list.iter()
            .map(|one| {
                json!({
                    "type": one.kind,
                    "status": if one.holds { "True" } else { "False" },
                    "reason": one.reason,
                    "message": one.message,
                    "observedGeneration": generation,
                })
            })
            .collect()
    }
}

fn reference(parent: &ParentReference) -> Value {
    let mut document = json!({ "name": parent.name });
    let words = [
        ("group", &parent.group),
        ("kind", &parent.kind),
        ("namespace", &parent.namespace),
        ("sectionName", &parent.section_name),
    ];
    for (name, value) in words {
        if let Some(value) = value {
            document[name] = value.clone().into();
        }
    }
    if let Some(port) = parent.port {
        document["port"] = port.into();
    }
    document
}
