//! Findings as Events, which `kubectl describe` shows below their object.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::time::{sleep, timeout};

use super::shared::{LONGEST_CALL, Shared, say};
use crate::report::{Finding, Severity};
use crate::translate::digest;

const CONTROLLER: &str = "weir.internal/ingress";
/// The pause between two Events. 10,000 wrong Ingresses are reported within minutes, and the load
/// on the API server is bounded.
const PACE: Duration = Duration::from_millis(20);
/// Limits of Kubernetes.
const LONGEST_NOTE: usize = 1000;
const LONGEST_NAME: usize = 200;
/// The most findings that are remembered as reported. Further ones are not reported.
const MOST: usize = 50_000;

/// Reports each finding once, forever.
pub async fn publish(client: Client, identity: String, shared: Arc<Shared>) {
    let (mut reports, mut leads) = (shared.report.subscribe(), shared.leads.subscribe());
    let mut told: HashSet<Finding> = HashSet::new();
    let mut failed = false;
    loop {
        tokio::select! {
            _ = reports.changed() => {}
            _ = leads.changed() => {}
        }
        'report: loop {
            let report = reports.borrow_and_update().clone();
            if !shared.leads() {
                break;
            }
            let now: HashSet<&Finding> = report.findings.iter().collect();
            // A finding that is over is reported again if it returns.
            told.retain(|finding| now.contains(finding));
            for finding in &report.findings {
                if finding.severity < Severity::Warning
                    || told.contains(finding)
                    || told.len() >= MOST
                {
                    continue;
                }
                match tell(&client, &identity, &shared, finding).await {
                    Ok(()) => {
                        failed = false;
                        told.insert(finding.clone());
                    }
                    Err(why) => {
                        if !std::mem::replace(&mut failed, true) {
                            say("warn", format_args!("Event: {why}"));
                        }
                        sleep(Duration::from_secs(5)).await;
                        continue 'report;
                    }
                }
                sleep(PACE).await;
                // A newer report may differ.
                if reports.has_changed().unwrap_or(false) || !shared.leads() {
                    continue 'report;
                }
            }
            break;
        }
    }
}

async fn tell(
    client: &Client,
    identity: &str,
    shared: &Shared,
    finding: &Finding,
) -> Result<(), String> {
    let id = &finding.object;
    // Objects without a namespace get no Events. Deleted objects need none.
    let Some((api_version, uid)) =
        shared.cluster.reference(id).filter(|_| !id.namespace.is_empty())
    else {
        return Ok(());
    };
    let text = format!("{}: {}", finding.about, finding.message);
    // The name of the Event depends on the finding alone, so that the next leader does not report
    // it again.
    let key = format!("{uid:?} {} {text}", finding.reason);
    let stem: String = id.name.chars().take(LONGEST_NAME).collect();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{stem}.{}", digest(key.as_bytes()))),
            namespace: Some(id.namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some("Translate".to_owned()),
        reason: Some(finding.reason.to_owned()),
        note: Some(text.chars().take(LONGEST_NOTE).collect()),
        type_: Some("Warning".to_owned()),
        event_time: Some(MicroTime(Timestamp::now())),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(identity.chars().take(128).collect()),
        regarding: Some(ObjectReference {
            api_version: Some(api_version),
            kind: Some(id.kind.to_owned()),
            name: Some(id.name.clone()),
            namespace: Some(id.namespace.clone()),
            uid,
            ..ObjectReference::default()
        }),
        ..Event::default()
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &id.namespace);
    match timeout(LONGEST_CALL, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => {
            shared.counters.events.add();
            Ok(())
        }
        // The Event exists, its namespace is being deleted, or it is denied. A retry would not
        // change that.
        Ok(Err(kube::Error::Api(status)))
            if matches!(status.code, 400..500) && status.code != 429 =>
        {
            if status.code != 409 && status.code != 404 {
                say("warn", format_args!("Event about {id}: {}", status.message));
            }
            Ok(())
        }
        Ok(Err(error)) => Err(super::watch::error_chain(&error)),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}
