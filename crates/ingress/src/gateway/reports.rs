//! Writes the statuses of Gateways and ListenerSets, after routes were attached.

use super::addresses;
use super::certificates;
use super::listeners::{Listener, Protocol, Served, record_generation};
use super::status::{Condition, GatewayPort, GatewayStatus, ListenerStatus, Statuses};
use crate::report::ObjectId;
use crate::settings::Settings;

/// Reasons for which a Gateway is accepted but not programmed.
const UNREACHABLE: &[&str] = &["AddressNotAssigned", "AddressNotUsable", "NoResources"];

/// Writes all these statuses.
pub(super) fn report(
    gateways: &[Served<'_>],
    listeners: &[Listener<'_>],
    settings: &Settings,
    statuses: &mut Statuses,
) {
    for (number, served) in gateways.iter().enumerate() {
        let mut status = summary(&served.id, listeners, served.refused.as_ref());
        status.conditions.push(references(served, &status.listeners));
        status.conditions.extend(certificates::insecure(served));
        let (addresses, awaited) = shown(served, settings);
        status.addresses = addresses;
        if awaited {
            withdraw(&mut status, "AddressNotAssigned", NO_ADDRESS);
        }
        for (id, _) in &served.sets {
            let mut joined = summary(id, listeners, served.refused.as_ref());
            if awaited {
                withdraw(&mut joined, "ParentNotProgrammed", NO_ADDRESS);
            }
            let accepted = joined.conditions.iter().any(|c| c.kind == "Accepted" && c.holds);
            status.attached_listener_sets += u32::from(accepted);
            statuses.listener_sets.insert(id.clone(), joined);
        }
        let own = listeners.iter().filter(|one| one.gateway == number && one.programmed);
        let ports = |one: &Listener<'_>| {
            let target = *settings.gateway_ports.get(&one.port).unwrap_or(&one.port);
            let port = |udp| GatewayPort { number: one.port, udp, target };
            let own = port(one.protocol == Some(Protocol::Udp));
            [Some(own), one.http3.then(|| port(true))].into_iter().flatten()
        };
        status.ports = own.flat_map(ports).collect();
        record_generation(statuses, &served.id, &served.gateway.metadata);
        statuses.gateways.insert(served.id.clone(), status);
    }
}

const NO_ADDRESS: &str = "the Service in front of weir has no address yet";

/// The addresses of a Gateway for clients, and whether they are still awaited. A load balancer of
/// its own comes before those that all Gateways have.
fn shown(served: &Served<'_>, settings: &Settings) -> (Vec<String>, bool) {
    let balancer = settings.balancers_of.as_ref().filter(|_| addresses::is_any(&served.addresses));
    let list = match balancer {
        Some(all) => {
            let key = (served.id.namespace.clone(), served.id.name.clone());
            all.get(&key).cloned().unwrap_or_default()
        }
        None if addresses::is_any(&served.addresses) => settings.published.clone(),
        None => served.addresses.clone(),
    };
    let awaited = list.is_empty() && (balancer.is_some() || settings.awaits_address);
    (list, awaited)
}

/// Makes an object not programmed, if it was.
fn withdraw(status: &mut GatewayStatus, reason: &'static str, text: &str) {
    let programmed = status.conditions.iter_mut().find(|c| c.kind == "Programmed" && c.holds);
    if let Some(condition) = programmed {
        *condition = Condition::no("Programmed", reason, text);
    }
}

/// The condition about the references of a Gateway: its own, and those of its listeners.
fn references(served: &Served<'_>, listeners: &[ListenerStatus]) -> Condition {
    if let Some(Err(refused) | Ok((_, Some(refused)))) = &served.client {
        return Condition::no("ResolvedRefs", refused.reason, refused.message.as_str());
    }
    let is_bad = |one: &&Condition| one.kind == "ResolvedRefs" && !one.holds;
    let bad = |one: &&ListenerStatus| one.conditions.iter().any(|c| is_bad(&c));
    match listeners.iter().find(bad) {
        None => Condition::yes("ResolvedRefs", "ResolvedRefs"),
        Some(one) => {
            let text = format!("listener {}: see its conditions", one.name);
            Condition::no("ResolvedRefs", "ListenersNotResolved", text)
        }
    }
}

fn summary(
    id: &ObjectId,
    all: &[Listener<'_>],
    refused: Option<&(&'static str, String)>,
) -> GatewayStatus {
    let own: Vec<&Listener<'_>> = all.iter().filter(|listener| listener.owner == *id).collect();
    let set = id.kind == "ListenerSet";
    // For a ListenerSet, listeners with unusable references do not count as accepted.
    let is_accepted = |one: &&&Listener<'_>| if set { one.valid } else { one.accepted };
    let accepted = own.iter().filter(is_accepted).count();
    let good = own.iter().filter(|one| one.programmed).count();
    let text = "some listeners are not valid; see their conditions";
    let mut conditions = Vec::new();
    conditions.push(match refused {
        Some((reason, text)) if !UNREACHABLE.contains(reason) => {
            let reason = if set { "ParentNotAccepted" } else { *reason };
            Condition::no("Accepted", reason, text.as_str())
        }
        _ if accepted == own.len() => Condition::yes("Accepted", "Accepted"),
        _ if accepted > 0 => Condition {
            message: text.to_owned(),
            ..Condition::yes("Accepted", "ListenersNotValid")
        },
        _ => Condition::no("Accepted", "ListenersNotValid", text),
    });
    conditions.push(match refused {
        Some((_, text)) if set => Condition::no("Programmed", "ParentNotProgrammed", text.as_str()),
        Some((reason, text)) => {
            let reason = if UNREACHABLE.contains(reason) { *reason } else { "Invalid" };
            Condition::no("Programmed", reason, text.as_str())
        }
        None if good > 0 || own.is_empty() => Condition::yes("Programmed", "Programmed"),
        None if set => Condition::no("Programmed", "ListenersNotValid", text),
        None => Condition::no("Programmed", "Invalid", text),
    });
    let listeners = own.iter().map(|one| ListenerStatus {
        name: one.spec.name.clone(),
        supported_kinds: one.kinds.clone(),
        attached_routes: one.attached,
        conditions: one.conditions.clone(),
    });
    GatewayStatus { conditions, listeners: listeners.collect(), ..GatewayStatus::default() }
}
