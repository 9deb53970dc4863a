//! The addresses in the status of Ingresses, which DNS controllers and people read.

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

/// So many are written at once, and then none for a while: thousands of them do not take the API server.
const AT_ONCE: usize = 8;
const PACE: Duration = Duration::from_millis(40);

/// Writes what differs, for ever.
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
        if !*leads.borrow_and_update() {
            continue;
        }
        let Some(wanted) = wanted(&publish, &shared) else { continue };
        let mut due: Vec<&ObjectId> = Vec::new();
        for id in report.served.iter().filter(|id| id.kind == "Ingress") {
            match differs(&shared, id, &wanted) {
                true if denials.holds(id, Instant::now()) => {}
                true => due.push(id),
                false => denials.passed(id),
            }
        }
        'due: for some in due.chunks(AT_ONCE) {
            let writes = some.iter().map(|id| write_one(&client, &shared, id, &wanted));
            for (id, written) in some.iter().zip(join_all(writes).await) {
                match written {
                    Ok(()) => {
                        failed = false;
                        denials.passed(id);
                    }
                    Err(Failed::Denied(why)) => {
                        if denials.denied(id, Instant::now()) {
                            say("warn", format_args!("status of {id}: {why}"));
                        }
                    }
                    Err(Failed::Away(why)) => {
                        if !std::mem::replace(&mut failed, true) {
                            say("warn", format_args!("status of {id}: {why}"));
                        }
                        break 'due;
                    }
                }
            }
            sleep(PACE).await;
            // A newer report has what is true now, and another pod may hold the Lease.
            if reports.has_changed().unwrap_or(false) || leads.has_changed().unwrap_or(false) {
                break;
            }
        }
    }
}

/// Whether the status of an Ingress says something else.
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
        // It was deleted meanwhile.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Ok(Err(error)) => Err(Failed::of(&error)),
        Err(_) => Err(Failed::silent()),
    }
}

/// The addresses; `None`: the Service has none yet, or is not there.
fn wanted(publish: &Publish, shared: &Shared) -> Option<Vec<IngressLoadBalancerIngress>> {
    let at = |text: &String| match text.parse::<std::net::IpAddr>() {
        Ok(ip) => IngressLoadBalancerIngress { ip: Some(ip.to_string()), ..Default::default() },
        Err(_) => IngressLoadBalancerIngress { hostname: Some(text.clone()), ..Default::default() },
    };
    let list = published(publish, |namespace, name| shared.cluster.service(namespace, name));
    (!list.is_empty()).then(|| list.iter().map(at).collect())
}

/// The addresses or names where clients reach this controller; none if the Service has none yet, or is not there.
pub(super) fn published(
    publish: &Publish,
    service: impl Fn(&str, &str) -> Option<Arc<Service>>,
) -> Vec<String> {
    let (namespace, name) = match publish {
        Publish::Nothing => return Vec::new(),
        Publish::Addresses(list) => return list.clone(),
        Publish::Service(namespace, name) => (namespace, name),
    };
    let Some(service) = service(namespace, name) else { return Vec::new() };
    let balancer = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let given = balancer.and_then(|b| b.ingress.as_deref()).unwrap_or_default();
    let mut list: Vec<String> =
        given.iter().flat_map(|a| a.ip.clone().or_else(|| a.hostname.clone())).collect();
    let spec = service.spec.as_ref();
    list.extend(spec.and_then(|spec| spec.external_ips.clone()).unwrap_or_default());
    if list.is_empty() {
        list.extend(spec.and_then(|spec| spec.cluster_ip.clone()));
    }
    list
}
