//! Translates Gateway API into a configuration. Like that of Ingresses, the translation is pure.
//!
//! [`objects`] has the objects as they are read. `listeners` judges Gateways and ListenerSets,
//! `routes` attaches routes to listeners, `rules` and `streams` read the rules of routes, and
//! `ports` decides which listener serves each name. `servers` and `streams` write the directives;
//! `entries` orders matches as the specification asks. The conditions of each object come out as
//! [`Statuses`].

pub mod addresses;
mod backends;
mod certificates;
mod durations;
mod entries;
mod features;
mod filters;
mod grants;
mod http3;
pub mod kinds;
mod listeners;
pub mod merge;
mod names;
pub mod objects;
mod policies;
mod ports;
pub mod ranges;
mod reports;
mod routes;
mod rules;
mod servers;
pub mod services;
pub mod status;
mod streams;
#[cfg(test)]
mod tests;
mod versions;

pub(crate) use certificates::ACME_OPTION;
pub use kinds::{AnyObject, Objects};
pub use status::{Condition, GatewayPort, GatewayStatus, ListenerStatus, ParentStatus, Statuses};

use crate::report::ObjectId;
use crate::translate::{OfIngresses, Servers, Work, line};

/// What belongs to a route, of a list in the order of the routes. `number` says whose an item is.
fn of_route<T>(list: &[T], route: usize, number: fn(&T) -> usize) -> &[T] {
    let begin = list.partition_point(|one| number(one) < route);
    let end = list.partition_point(|one| number(one) <= route);
    list.get(begin..end).unwrap_or_default()
}

/// Translates all objects of Gateway API, beside the servers of Ingresses.
pub(crate) fn translate(work: &mut Work<'_>, ingresses: &OfIngresses) -> Servers {
    let mut made = Servers::default();
    let mut gateways = listeners::gateways(work, &mut made.statuses);
    listeners::attach_sets(work, &mut gateways, &mut made.statuses);
    for served in &mut gateways {
        certificates::for_servers(work, served);
    }
    let mut listeners = listeners::listeners(work, &gateways, &ingresses.words);
    let mut routes = routes::routes(work);
    let (attachments, parents) = routes::attach(work, &gateways, &listeners, &routes);
    let mut policies = policies::Policies::read(work);
    let (mut rules, mut passes) = (Vec::new(), Vec::new());
    for (number, route) in routes.iter_mut().enumerate() {
        let mut own: Vec<ObjectId> = Vec::new();
        for one in of_route(&attachments, number, |one| one.route) {
            let id = &gateways[listeners[one.listener].gateway].id;
            if !own.contains(id) {
                own.push(id.clone());
            }
        }
        let first = rules.len();
        rules.extend(rules::read(work, &mut policies, &own, (number, route), first));
        passes.extend(streams::read(work, &mut policies, &own, (number, route)));
    }
    routes::count(&routes, &attachments, &mut listeners);
    let ports = ports::ports(work, &gateways, &listeners, &routes, &attachments);
    http3::choose(work, &mut listeners, &ports);
    let plan = servers::Plan { gateways: &gateways, listeners: &listeners, rules: &rules };
    for port in &ports {
        servers::servers(work, &plan, port, ingresses, &mut made);
        let mut sessions = streams::servers(work, &listeners, &passes, port);
        if let Some(first) = port.listeners.first() {
            work.mark(&listeners[*first].owner, &mut sessions);
        }
        made.streams.extend(sessions);
    }
    if !made.http.is_empty() {
        // Values of objects are no templates: a dollar in them becomes this variable.
        let dollar = line("geo", ["$dollar"]).with_block(vec![line("default", ["$"])]);
        work.shared.insert("geo $dollar".to_owned(), vec![dollar]);
    }
    reports::report(&gateways, &listeners, work.settings, &mut made.statuses);
    routes::report(&routes, parents, &mut made.statuses);
    policies.report(work, &mut made.statuses);
    made
}
