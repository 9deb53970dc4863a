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
use crate::gateway::services::addresses;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_that_is_not_there_takes_no_address_away() {
        let publish = Publish::Service("a".to_owned(), "b".to_owned());
        assert_eq!(published(&publish, |_, _| None), None);
        let pending: Service =
            serde_json::from_value(json!({ "spec": { "type": "LoadBalancer" } })).unwrap();
        assert_eq!(published(&publish, |_, _| Some(Arc::new(pending.clone()))), Some(Vec::new()));
    }
}
