//! The servers of an upstream group: lines of the configuration, or a file that running workers
//! follow.
//!
//! Pods come and go all the time. With
//! [`Settings::servers_in_files`](crate::settings::Settings::servers_in_files), the configuration
//! names a file (`servers_file`). It then changes only with the first and the last pod of a
//! Service, and with the room for its pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use weir_conf::Directive;

use super::lines::{digest, line};
use crate::annotations::values;
use crate::settings::PodChoice;

/// The directory of these files, below the state directory.
pub const DIRECTORY: &str = "servers";

/// The pods of a Service's port, as the servers of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerGroup {
    /// The namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Its port.
    pub port: ServicePort,
    /// How many times each server is listed.
    pub times: usize,
    /// The parameters of each server.
    pub words: ServerWords,
    /// The servers for which the configuration has room, in steps. The configuration depends on
    /// this number. 0 if there are none.
    pub room: usize,
}

/// The parameters of a `server` line, beside its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerWords {
    /// Nothing.
    Nothing,
    /// `route`, the value that a canary's cookie has.
    CanaryRoute,
    /// `max_fails=0`: a failed server stays in use.
    NeverDown,
}

impl ServerGroup {
    /// The pods of a port, listed once each.
    pub fn new(namespace: &str, service: &str, port: &ServicePort) -> ServerGroup {
        ServerGroup {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            port: port.clone(),
            times: 1,
            words: ServerWords::Nothing,
            room: 0,
        }
    }

    /// The addresses of the ready pods in these slices of the Service.
    pub fn addresses<'s>(
        &self,
        slices: impl IntoIterator<Item = &'s EndpointSlice>,
        choice: PodChoice<'_>,
    ) -> BTreeSet<String> {
        addresses(slices, &self.port, choice)
    }

    /// The `server` lines for these addresses.
    pub fn lines(&self, addresses: &BTreeSet<String>) -> Vec<Directive> {
        let one = |address: &String| match self.words {
            ServerWords::Nothing => line("server", [address.as_str()]),
            ServerWords::CanaryRoute => {
                let route = format!("route=canary-{}", digest(address.as_bytes()));
                line("server", [address.as_str(), &route])
            }
            ServerWords::NeverDown => line("server", [address.as_str(), "max_fails=0"]),
        };
        (0..self.times).flat_map(|_| addresses.iter().map(one)).collect()
    }

    /// The room for these servers, as [`ServerGroup::room`].
    pub fn room_for(&self, addresses: &BTreeSet<String>) -> usize {
        room(addresses.len() * self.times)
    }
}

/// The room for a number of servers: a power of two, so that one more pod rarely changes it. 0 for
/// none.
pub(crate) fn room(servers: usize) -> usize {
    match servers {
        0 => 0,
        servers => servers.next_power_of_two().max(LEAST),
    }
}

/// The least room. Most groups have fewer servers.
pub(crate) const LEAST: usize = 2048;

/// The addresses of ready pods, for `server`. As in kube-proxy, if none is ready, pods that are
/// terminating and still serving are used.
pub(super) fn addresses<'s>(
    slices: impl IntoIterator<Item = &'s EndpointSlice>,
    port: &ServicePort,
    choice: PodChoice<'_>,
) -> BTreeSet<String> {
    let (mut ready, mut ending) = (Vec::new(), Vec::new());
    for slice in slices {
        let ports = slice.ports.as_deref().unwrap_or_default();
        let number = ports.iter().find(|p| {
            p.name.as_deref().unwrap_or_default() == port.name.as_deref().unwrap_or_default()
        });
        let number = number.and_then(|p| p.port).or(match &port.target_port {
            Some(IntOrString::Int(number)) if ports.is_empty() => Some(*number),
            _ => None,
        });
        let Some(number) = number else { continue };
        let is_ready =
            |one: &&Endpoint| one.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
        let is_ending = |one: &&Endpoint| {
            let found = one.conditions.as_ref();
            found.is_some_and(|c| c.serving == Some(true) && c.terminating == Some(true))
        };
        let some = |wanted: &dyn Fn(&&Endpoint) -> bool, list: &mut Vec<_>| {
            list.extend(slice.endpoints.iter().filter(wanted).map(|endpoint| (endpoint, number)));
        };
        some(&is_ready, &mut ready);
        some(&is_ending, &mut ending);
    }
    if ready.is_empty() {
        ready = ending;
    }
    if let Some(zone) = choice.zone {
        keep_near(&mut ready, zone);
    }
    let of = |(endpoint, number): (&'s Endpoint, i32)| {
        endpoint.addresses.iter().filter_map(move |ip| address(ip, number, choice.loopback))
    };
    ready.into_iter().flat_map(of).collect()
}

/// Keeps the pods with a hint for `zone`. As in kube-proxy, all are used if one has no hints, or if
/// none has a hint for this zone.
fn keep_near(ready: &mut Vec<(&Endpoint, i32)>, zone: &str) {
    let zones = |endpoint: &'_ Endpoint| -> Vec<String> {
        let hints = endpoint.hints.as_ref().and_then(|hints| hints.for_zones.as_deref());
        hints.unwrap_or_default().iter().map(|hint| hint.name.clone()).collect()
    };
    let is_near = |endpoint: &Endpoint| zones(endpoint).iter().any(|name| name == zone);
    let all_meant = ready.iter().all(|(endpoint, _)| !zones(endpoint).is_empty());
    if all_meant && ready.iter().any(|(endpoint, _)| is_near(endpoint)) {
        ready.retain(|(endpoint, _)| is_near(endpoint));
    }
}

/// An address and port for `server`, if an upstream server may have the address.
pub(super) fn address(ip: &str, port: i32, loopback: bool) -> Option<String> {
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    let ip: IpAddr = ip.parse().ok()?;
    (loopback || values::is_far(ip)).then(|| match ip {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An EndpointSlice of pods, each with its address, whether it is ready, and the zones of its
    /// hints.
    fn slice(pods: &[(&str, bool, &[&str])]) -> EndpointSlice {
        let endpoint = |(ip, ready, zones): &(&str, bool, &[&str])| {
            let zones: Vec<_> = zones.iter().map(|z| serde_json::json!({ "name": z })).collect();
            serde_json::json!({ "addresses": [ip], "conditions": { "ready": ready },
                "hints": { "forZones": zones } })
        };
        let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
        let object = serde_json::json!({ "addressType": "IPv4", "metadata": { "name": "s" },
            "ports": [{ "port": 8080 }], "endpoints": endpoints });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn pods_that_end_are_used_where_no_other_is_ready() {
        let port = ServicePort { port: 80, ..ServicePort::default() };
        let pod = |n: u8, ready: bool, serving: bool, terminating: bool| {
            serde_json::json!({ "addresses": [format!("10.0.0.{n}")], "conditions":
                { "ready": ready, "serving": serving, "terminating": terminating } })
        };
        let seen = |pods: &[serde_json::Value]| {
            let object = serde_json::json!({ "addressType": "IPv4", "metadata": { "name": "s" },
                "ports": [{ "port": 8080 }], "endpoints": pods });
            let slice: EndpointSlice = serde_json::from_value(object).unwrap();
            let choice = PodChoice { loopback: false, zone: None };
            addresses([&slice], &port, choice).into_iter().collect::<Vec<_>>().join(" ")
        };
        let (ends, ended) = (pod(1, false, true, true), pod(2, false, false, true));
        let begins = pod(3, false, false, false);
        let all = [ends.clone(), ended.clone(), begins.clone()];
        assert_eq!(seen(&all), "10.0.0.1:8080");
        assert_eq!(seen(&[ends, pod(4, true, true, false)]), "10.0.0.4:8080");
        assert_eq!(seen(&[ended, begins]), "");
    }

    #[test]
    fn pods_that_are_meant_for_the_zone_are_enough() {
        let port = ServicePort { port: 80, ..ServicePort::default() };
        let seen = |pods: &[(&str, bool, &[&str])], zone: Option<&str>| {
            let choice = PodChoice { loopback: false, zone };
            // The pods of a Service may be in several slices.
            let (one, two) = pods.split_at(pods.len() / 2);
            let found = addresses([&slice(one), &slice(two)], &port, choice);
            found.iter().map(|at| at.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        let meant: [(&str, bool, &[&str]); 3] =
            [(all[0], true, &["a"]), (all[1], true, &["a", "b"]), (all[2], true, &["c"])];
        assert_eq!(seen(&meant, None), all);
        assert_eq!(seen(&meant, Some("a")), all[..2]);
        assert_eq!(seen(&meant, Some("b")), all[1..2]);
        assert_eq!(seen(&meant, Some("d")), all, "none is meant for this zone");
        let mut some = meant;
        some[2].2 = &[];
        assert_eq!(seen(&some, Some("a")), all, "not all are meant for a zone");
        some[2].1 = false;
        assert_eq!(seen(&some, Some("a")), all[..2], "what is not ready does not count");
        some[0].1 = false;
        some[1].1 = false;
        assert!(seen(&some, Some("a")).is_empty());
    }
}
