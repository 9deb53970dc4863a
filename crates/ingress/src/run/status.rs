//! The addresses in the status of Ingresses, which DNS controllers and people read.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::networking::v1::{
    Ingress, IngressLoadBalancerIngress, IngressLoadBalancerStatus, IngressStatus,
};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use tokio::time::{sleep, timeout};

use super::{Shared, say};
use crate::report::ObjectId;

/// Where clients reach this controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publish {
    /// No status is written.
    Nothing,
    /// At these addresses or names.
    Addresses(Vec<String>),
    /// At those of a Service: namespace and name.
    Service(String, String),
}

/// How often the status is compared without a report.
const LOOK: Duration = Duration::from_secs(10);
const LONGEST_CALL: Duration = Duration::from_secs(5);
/// Between two writes, so that thousands of them do not take the API server.
const PACE: Duration = Duration::from_millis(10);

/// Writes what differs, for ever.
pub async fn write(client: Client, publish: Publish, shared: Arc<Shared>) {
    if publish == Publish::Nothing {
        return;
    }
    let (mut reports, mut leads) = (shared.report.subscribe(), shared.leads.subscribe());
    let mut failed = false;
    loop {
        tokio::select! {
            _ = reports.changed() => {}
            _ = leads.changed() => {}
            () = sleep(LOOK) => {}
        }
        let report = reports.borrow_and_update().clone();
        if !*leads.borrow_and_update() {
            continue;
        }
        let Some(wanted) = wanted(&publish, &shared) else { continue };
        for id in report.served.iter().filter(|id| id.kind == "Ingress") {
            match write_one(&client, &shared, id, &wanted).await {
                Ok(false) => continue,
                Ok(true) => {
                    failed = false;
                    sleep(PACE).await;
                }
                Err(why) => {
                    if !std::mem::replace(&mut failed, true) {
                        say("warn", format_args!("status of {id}: {why}"));
                    }
                    break;
                }
            }
        }
    }
}

/// Whether the status had to be written.
async fn write_one(
    client: &Client,
    shared: &Shared,
    id: &ObjectId,
    wanted: &[IngressLoadBalancerIngress],
) -> Result<bool, String> {
    let Some(ingress) = shared.cluster.ingress(id) else { return Ok(false) };
    let now = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let now = now.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    let bare = |list: &[IngressLoadBalancerIngress]| -> Vec<_> {
        list.iter().map(|a| (a.ip.clone(), a.hostname.clone())).collect()
    };
    if bare(now) == bare(wanted) {
        return Ok(false);
    }
    let balancer = IngressLoadBalancerStatus { ingress: Some(wanted.to_vec()) };
    let patch = serde_json::json!({ "status": IngressStatus { load_balancer: Some(balancer) } });
    let api: Api<Ingress> = Api::namespaced(client.clone(), &id.namespace);
    let params = PatchParams::default();
    let patch = Patch::Merge(&patch);
    let written = timeout(LONGEST_CALL, api.patch_status(&id.name, &params, &patch)).await;
    match written {
        Ok(Ok(_)) => {
            shared.counters.statuses.add();
            Ok(true)
        }
        // It was deleted meanwhile.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(false),
        Ok(Err(error)) => Err(super::watch::whole(&error)),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

/// The addresses; `None`: the Service has none yet, or is not there.
fn wanted(publish: &Publish, shared: &Shared) -> Option<Vec<IngressLoadBalancerIngress>> {
    let at = |text: &str| match text.parse::<std::net::IpAddr>() {
        Ok(ip) => IngressLoadBalancerIngress { ip: Some(ip.to_string()), ..Default::default() },
        Err(_) => {
            IngressLoadBalancerIngress { hostname: Some(text.to_owned()), ..Default::default() }
        }
    };
    let list: Vec<_> = match publish {
        Publish::Nothing => return None,
        Publish::Addresses(list) => list.iter().map(|text| at(text)).collect(),
        Publish::Service(namespace, name) => {
            let service = shared.cluster.service(namespace, name)?;
            let balancer = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
            let given = balancer.and_then(|b| b.ingress.as_deref()).unwrap_or_default();
            let mut list: Vec<_> = given
                .iter()
                .map(|a| IngressLoadBalancerIngress {
                    ip: a.ip.clone(),
                    hostname: a.hostname.clone(),
                    ports: None,
                })
                .collect();
            let spec = service.spec.as_ref();
            let external = spec.and_then(|spec| spec.external_ips.as_deref()).unwrap_or_default();
            list.extend(external.iter().map(|ip| at(ip)));
            if list.is_empty() {
                list.extend(spec.and_then(|s| s.cluster_ip.as_deref()).map(at));
            }
            list
        }
    };
    (!list.is_empty()).then_some(list)
}
