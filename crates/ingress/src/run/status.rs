//! The addresses in the status of Ingresses, for DNS controllers and people.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{
    Ingress, IngressLoadBalancerIngress, IngressLoadBalancerStatus, IngressStatus,
};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use tokio::time::{sleep, timeout};

use super::denials::{Denials, Failed};
use super::shared::{LONGEST_CALL, Publish, Shared, next_round, say};
use crate::report::ObjectId;

/// At most this many statuses are written at once, with a pause after them, to bound the load on
/// the API server.
const AT_ONCE: usize = 8;
const PACE: Duration = Duration::from_millis(40);

/// Writes statuses that differ, forever.
pub async fn write(client: Client, publish: Publish, shared: Arc<Shared>) {
    if publish == Publish::Nothing {
        return;
    }
    let (mut reports, mut leads) = (shared.report.subscribe(), shared.leads.subscribe());
    let mut denials: Denials<ObjectId> = Denials::default();
    let mut failed = false;
    loop {
        next_round(&mut reports, &mut leads).await;
        let report = reports.borrow_and_update().clone();
        if !shared.leads() {
            continue;
        }
        let Some(wanted) = wanted(&publish, &shared) else { continue };
        let mut due: Vec<&ObjectId> = Vec::new();
        for id in report.served.iter().filter(|id| id.kind == "Ingress") {
            match differs(&shared, id, &wanted) {
                true if denials.must_wait(id, Instant::now()) => {}
                true => due.push(id),
                false => denials.remove(id),
            }
        }
        'due: for some in due.chunks(AT_ONCE) {
            let writes = some.iter().map(|id| write_one(&client, &shared, id, &wanted));
            for (id, written) in some.iter().zip(join_all(writes).await) {
                match written {
                    Ok(()) => {
                        failed = false;
                        denials.remove(id);
                    }
                    Err(Failed::Denied(why)) => {
                        if denials.denied(id, Instant::now()) {
                            say("warn", format_args!("status of {id}: {why}"));
                        }
                    }
                    Err(Failed::Unavailable(why)) => {
                        if !std::mem::replace(&mut failed, true) {
                            say("warn", format_args!("status of {id}: {why}"));
                        }
                        break 'due;
                    }
                }
            }
            sleep(PACE).await;
            // A newer report may differ, and another pod may hold the Lease.
            if reports.has_changed().unwrap_or(false) || !shared.leads() {
                break;
            }
        }
    }
}

/// Whether the status of an Ingress differs from `wanted`.
fn differs(shared: &Shared, id: &ObjectId, wanted: &[IngressLoadBalancerIngress]) -> bool {
    let Some(ingress) = shared.cluster.ingress(id) else { return false };
    let now = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let now = now.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    let bare = |list: &[IngressLoadBalancerIngress]| -> Vec<_> {
        list.iter().map(|a| (a.ip.clone(), a.hostname.clone())).collect()
    };
    bare(now) != bare(wanted)
}

async fn write_one(
    client: &Client,
    shared: &Shared,
    id: &ObjectId,
    wanted: &[IngressLoadBalancerIngress],
) -> Result<(), Failed> {
    let balancer = IngressLoadBalancerStatus { ingress: Some(wanted.to_vec()) };
    let patch = serde_json::json!({ "status": IngressStatus { load_balancer: Some(balancer) } });
    let api: Api<Ingress> = Api::namespaced(client.clone(), &id.namespace);
    let params = PatchParams::default();
    let patch = Patch::Merge(&patch);
    let written = timeout(LONGEST_CALL, api.patch_status(&id.name, &params, &patch)).await;
    match written {
        Ok(Ok(_)) => {
            shared.counters.statuses.add();
            Ok(())
        }
        // The Ingress was deleted meanwhile.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Ok(Err(error)) => Err(Failed::of(&error)),
        Err(_) => Err(Failed::timed_out()),
    }
}

/// The addresses to write; `None` if the published Service does not exist.
fn wanted(publish: &Publish, shared: &Shared) -> Option<Vec<IngressLoadBalancerIngress>> {
    let at = |text: &String| match text.parse::<std::net::IpAddr>() {
        Ok(ip) => IngressLoadBalancerIngress { ip: Some(ip.to_string()), ..Default::default() },
        Err(_) => IngressLoadBalancerIngress { hostname: Some(text.clone()), ..Default::default() },
    };
    let list = published(publish, |namespace, name| shared.cluster.service(namespace, name));
    list.map(|list| list.iter().map(at).collect())
}

/// The addresses or names of this controller for clients. Empty while a Service's load balancer has
/// none. `None` if the Service does not exist.
pub(super) fn published(
    publish: &Publish,
    service: impl Fn(&str, &str) -> Option<Arc<Service>>,
) -> Option<Vec<String>> {
    let (namespace, name) = match publish {
        Publish::Nothing => return Some(Vec::new()),
        Publish::Addresses(list) => return Some(list.clone()),
        Publish::Service(namespace, name) => (namespace, name),
    };
    service(namespace, name).map(|service| addresses(&service))
}

/// The addresses or names of a Service. Its cluster IP counts only if it asks for no load balancer.
/// While a load balancer is being made, clients and DNS must not get the cluster IP.
fn addresses(service: &Service) -> Vec<String> {
    let balancer = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let given = balancer.and_then(|b| b.ingress.as_deref()).unwrap_or_default();
    let mut list: Vec<String> =
        given.iter().flat_map(|a| a.ip.clone().or_else(|| a.hostname.clone())).collect();
    let Some(spec) = &service.spec else { return list };
    let mut add = |more: &[String]| {
        let new: Vec<String> = more.iter().filter(|one| !list.contains(one)).cloned().collect();
        list.extend(new);
        list.is_empty()
    };
    if !add(spec.external_ips.as_deref().unwrap_or_default()) {
        return list;
    }
    let own = match spec.type_.as_deref() {
        Some("LoadBalancer") => None,
        Some("ExternalName") => spec.external_name.as_ref(),
        // A headless Service has the cluster IP "None".
        _ => spec.cluster_ip.as_ref().filter(|ip| *ip != "None"),
    };
    list.extend(own.filter(|own| !own.is_empty()).cloned());
    list
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shown(spec: Value, balancer: Value) -> Vec<String> {
        let object = json!({ "spec": spec, "status": { "loadBalancer": { "ingress": balancer } } });
        addresses(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_address_of_the_cluster_does_not_stand_in_for_a_balancer() {
        let of = |kind: &str| json!({ "type": kind, "clusterIP": "10.0.0.9" });
        let none = || json!([]);
        assert_eq!(shown(of("LoadBalancer"), none()), Vec::<String>::new());
        let given = json!([{ "ip": "192.0.2.1", "hostname": "x.test" }, { "hostname": "y.test" }]);
        assert_eq!(shown(of("LoadBalancer"), given), ["192.0.2.1", "y.test"]);
        assert_eq!(shown(of("ClusterIP"), none()), ["10.0.0.9"]);
        assert_eq!(shown(of("NodePort"), none()), ["10.0.0.9"]);
        let both = json!({ "type": "LoadBalancer", "externalIPs": ["192.0.2.7", "192.0.2.1"] });
        assert_eq!(shown(both, json!([{ "ip": "192.0.2.1" }])), ["192.0.2.1", "192.0.2.7"]);
        let headless = json!({ "type": "ClusterIP", "clusterIP": "None" });
        assert_eq!(shown(headless, none()), Vec::<String>::new());
        let name = json!({ "type": "ExternalName", "externalName": "edge.test" });
        assert_eq!(shown(name, none()), ["edge.test"]);
    }

    #[test]
    fn a_service_that_is_not_there_takes_no_address_away() {
        let publish = Publish::Service("a".to_owned(), "b".to_owned());
        assert_eq!(published(&publish, |_, _| None), None);
        let pending: Service =
            serde_json::from_value(json!({ "spec": { "type": "LoadBalancer" } })).unwrap();
        assert_eq!(published(&publish, |_, _| Some(Arc::new(pending.clone()))), Some(Vec::new()));
    }
}
