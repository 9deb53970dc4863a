//! The admission webhook: the API server asks it before it stores an Ingress. Errors in an Ingress
//! are refused with their message.
//!
//! Only errors of the Ingress itself count. A missing Service or Secret may be created later.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::networking::v1::Ingress;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::health::{Connections, accepted};
use super::serve::settings;
use super::shared::{Options, Shared, say};
use crate::gateway::Objects;
use crate::report::{Finding, ObjectId, Severity};
use crate::snapshot::Snapshot;

/// The most connections at the same time, how long each may last, and the longest request body.
const MOST: usize = 64;
const LONGEST: Duration = Duration::from_secs(60);
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);
const LONGEST_QUESTION: usize = 8 << 20;
/// The most questions that are read and judged at the same time. Each takes a thread, the memory of
/// its objects, and the time of a translation of all objects.
const MOST_JUDGED: usize = 4;
/// How often the certificate is read again. cert-manager renews it.
const FRESH: Duration = Duration::from_secs(60);

/// The reasons of findings that refuse an Ingress: errors that no other object can mend.
const REASONS: [&str; 7] = [
    "HostTaken",
    "InvalidAnnotation",
    "InvalidHost",
    "InvalidPath",
    "InvalidSnippet",
    "PathTaken",
    "TooLarge",
];

/// Starts to answer the API server. `dir` has tls.crt and tls.key.
pub async fn listen(
    address: SocketAddr,
    dir: PathBuf,
    options: Options,
    shared: Arc<Shared>,
) -> Result<(), String> {
    let listener =
        TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
    let mut tls = load(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut read = Instant::now();
    let options = Arc::new(options);
    let judges = Arc::new(Semaphore::new(MOST_JUDGED));
    tokio::spawn(async move {
        let mut connections = Connections::default();
        loop {
            let stream = accepted(&listener).await;
            if read.elapsed() > FRESH {
                read = Instant::now();
                match load(&dir) {
                    Ok(fresh) => tls = fresh,
                    Err(error) => say("warn", format_args!("{}: {error}", dir.display())),
                }
            }
            let (tls, options, shared) = (tls.clone(), options.clone(), shared.clone());
            let judges = judges.clone();
            connections.serve(MOST, async move {
                let secured = timeout(LONGEST_HANDSHAKE, tls.accept(stream)).await;
                let Ok(Ok(stream)) = secured else { return };
                let service = service_fn(|request| {
                    let (options, shared) = (options.clone(), shared.clone());
                    let judges = judges.clone();
                    async move { Ok::<_, Infallible>(answer(request, &options, &shared, &judges).await) }
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(LONGEST);
                let served = http.serve_connection(TokioIo::new(stream), service);
                let _ = timeout(LONGEST, served).await;
            });
        }
    });
    Ok(())
}

fn load(dir: &Path) -> io::Result<TlsAcceptor> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let (chain, key) = (fs::read(dir.join("tls.crt"))?, fs::read(dir.join("tls.key"))?);
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(format!("tls.crt: {error}")))?;
    let key =
        PrivateKeyDer::from_pem_slice(&key).map_err(|error| wrong(format!("tls.key: {error}")))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
    Ok(TlsAcceptor::from(Arc::new(config.map_err(|error| wrong(error.to_string()))?)))
}

async fn answer(
    request: Request<Incoming>,
    options: &Arc<Options>,
    shared: &Arc<Shared>,
    judges: &Arc<Semaphore>,
) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: String| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.method() != Method::POST || request.uri().path() != "/validate" {
        return plain(StatusCode::NOT_FOUND, "POST /validate\n".to_owned());
    }
    let Ok(body) = Limited::new(request.into_body(), LONGEST_QUESTION).collect().await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "the question is too long\n".to_owned());
    };
    let (options, shared) = (options.clone(), shared.clone());
    let judgement = judged(judges, move || respond(&body.to_bytes(), &options, &shared));
    match judgement.await {
        Some(Ok(text)) => {
            let mut response = plain(StatusCode::OK, text);
            let json = hyper::header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
            response
        }
        Some(Err(why)) => plain(StatusCode::BAD_REQUEST, format!("the question is no {why}\n")),
        None => plain(StatusCode::INTERNAL_SERVER_ERROR, "the judgement failed\n".to_owned()),
    }
}

/// Runs a judgement on a thread of its own when one of the places is free. The judgement keeps its
/// place until it ends, also if its client has left. So a client that leaves cannot start another
/// beside it.
async fn judged<T: Send + 'static>(
    judges: &Arc<Semaphore>,
    judge: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let place = judges.clone().acquire_owned().await.ok()?;
    let judgement = tokio::task::spawn_blocking(move || {
        let _place = place;
        judge()
    });
    judgement.await.ok()
}

/// The answer to a question, or what the question is not.
fn respond(question: &[u8], options: &Options, shared: &Shared) -> Result<String, &'static str> {
    let review: Value = serde_json::from_slice(question).map_err(|_| "JSON")?;
    let uid = review.pointer("/request/uid").and_then(Value::as_str).ok_or("AdmissionReview")?;
    let ingress =
        review.pointer("/request/object").and_then(|object| Ingress::deserialize(object).ok());
    let why = match (ingress, shared.cluster.snapshot()) {
        (Some(ingress), Some(snapshot)) if is_watched(&ingress, options.namespace.as_deref()) => {
            let settings = settings(options, &snapshot);
            judge(ingress, snapshot, &settings)
        }
        // The objects are not listed yet, or the object is no Ingress of the watched namespace.
        // Events report its errors later.
        _ => None,
    };
    let mut response = json!({ "uid": uid, "allowed": why.is_none() });
    if let (Some(why), Some(members)) = (why, response.as_object_mut()) {
        members.insert("status".to_owned(), json!({ "code": 400, "message": why }));
    }
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
    });
    Ok(answer.to_string())
}

/// Whether an Ingress is in the watched namespace. The API server asks about all namespaces.
fn is_watched(ingress: &Ingress, only: Option<&str>) -> bool {
    only.is_none_or(|only| ingress.metadata.namespace.as_deref() == Some(only))
}

/// The errors of an Ingress, as if it were stored among the other objects.
fn judge(
    mut ingress: Ingress,
    mut snapshot: Snapshot,
    settings: &crate::settings::Settings,
) -> Option<String> {
    // An Ingress that is not stored yet is the youngest.
    if ingress.metadata.creation_timestamp.is_none() {
        let now = k8s_openapi::jiff::Timestamp::now();
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now);
        ingress.metadata.creation_timestamp = Some(time);
    }
    let id = ObjectId::of("Ingress", &ingress.metadata);
    snapshot.ingresses.retain(|other| ObjectId::of("Ingress", &other.metadata) != id);
    keep_neighbours(&ingress, &mut snapshot);
    snapshot.ingresses.push(Arc::new(ingress));
    let findings = crate::translate(&snapshot, settings).findings;
    let wrong = |finding: &&Finding| {
        finding.object == id
            && finding.severity == Severity::Error
            && REASONS.contains(&finding.reason)
    };
    let list: Vec<String> = findings
        .iter()
        .filter(wrong)
        .map(|finding| format!("{}: {}", finding.about, finding.message))
        .collect();
    (!list.is_empty()).then(|| list.join("\n"))
}

/// Leaves only those objects that the judgement depends on: Ingresses with one of the same hosts.
/// A judgement then costs little in a large cluster, where clients may ask for many.
fn keep_neighbours(ingress: &Ingress, snapshot: &mut Snapshot) {
    let own = hosts(ingress);
    snapshot.ingresses.retain(|other| !hosts(other).is_disjoint(&own));
    let namespaces = std::mem::take(&mut snapshot.gateway.namespaces);
    snapshot.gateway = Objects { namespaces, ..Objects::default() };
}

/// The hosts of an Ingress; an empty one stands for all.
fn hosts(ingress: &Ingress) -> BTreeSet<&str> {
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.as_deref().unwrap_or_default());
    let hosts: BTreeSet<&str> =
        rules.map(|rule| rule.host.as_deref().unwrap_or_default()).collect();
    if hosts.is_empty() { BTreeSet::from([""]) } else { hosts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn ingress(name: &str, annotations: Value, path: &str) -> Ingress {
        let object = json!({ "metadata": { "name": name, "namespace": "a", "annotations": annotations },
            "spec": { "rules": [{ "host": "a.test", "http": { "paths": [{ "path": path, "pathType": "Prefix",
            "backend": { "service": { "name": "missing", "port": { "number": 80 } } } }] } }] } });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn ingresses_of_namespaces_that_are_not_watched_are_not_judged() {
        let one = ingress("one", json!({}), "/");
        assert!(is_watched(&one, None) && is_watched(&one, Some("a")));
        assert!(!is_watched(&one, Some("b")));
    }

    #[test]
    fn an_ingress_is_judged_beside_those_of_its_hosts_alone() {
        let with_host = |name: &str, host: Option<&str>| {
            let mut one = ingress(name, json!({}), "/");
            for rule in one.spec.iter_mut().flat_map(|spec| spec.rules.iter_mut().flatten()) {
                rule.host = host.map(str::to_owned);
            }
            one
        };
        let mut snapshot = Snapshot::default();
        for n in 0..5000 {
            let host = format!("h{n}.test");
            let one = with_host(&format!("i{n}"), Some(&host));
            snapshot.ingresses.push(Arc::new(one));
        }
        snapshot.ingresses.push(Arc::new(with_host("any", None)));
        let names = |judged: &Ingress| {
            let mut left = snapshot.clone();
            keep_neighbours(judged, &mut left);
            let name = |one: &Arc<Ingress>| one.metadata.name.clone().unwrap();
            left.ingresses.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(&with_host("new", Some("h7.test"))), ["i7"]);
        assert_eq!(names(&with_host("new", None)), ["any"]);
        let mut bare = with_host("new", None);
        bare.spec.iter_mut().for_each(|spec| spec.rules = None);
        assert_eq!(names(&bare), ["any"]);
    }

    #[test]
    fn a_client_that_leaves_frees_no_place_for_another_judgement() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let judges = Arc::new(Semaphore::new(1));
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let (begin, begun) = tokio::sync::oneshot::channel();
            let first = judged(&judges, move || {
                let _ = begin.send(());
                let _ = ended.recv();
            });
            tokio::select! {
                _ = first => panic!("nobody has ended the judgement"),
                begun = begun => begun.unwrap(),
            }
            // The first client has left, and its judgement goes on.
            assert_eq!(judges.available_permits(), 0);
            drop(end);
            assert_eq!(judged(&judges, || 2).await, Some(2));
        });
    }

    #[test]
    fn what_an_ingress_says_wrong_is_told_and_what_may_come_later_is_not() {
        let settings = Settings {
            without_class: true,
            snippet_directives: ["add_header".to_owned()].into(),
            ..Settings::default()
        };
        let mut snapshot = Snapshot::default();
        let judge = |snapshot: &Snapshot, ingress| judge(ingress, snapshot.clone(), &settings);
        assert_eq!(judge(&snapshot, ingress("one", json!({}), "/")), None);
        let snippet = "nginx.ingress.kubernetes.io/configuration-snippet";
        let wrong = json!({ snippet: "add_header X y;\nproxy_pas http://x;" });
        let why = judge(&snapshot, ingress("one", wrong, "/")).unwrap();
        assert!(why.contains("proxy_pas http://x;\n    | ^"), "{why}");
        let wrong = json!({ "nginx.ingress.kubernetes.io/proxy-body-size": "much" });
        let why = judge(&snapshot, ingress("one", wrong, "/")).unwrap();
        assert!(why.starts_with("proxy-body-size: "), "{why}");
        let mut old = ingress("old", json!({}), "/");
        old.metadata.creation_timestamp =
            Some(serde_json::from_value(json!("2020-01-01T00:00:00Z")).unwrap());
        snapshot.ingresses.push(Arc::new(old));
        let why = judge(&snapshot, ingress("one", json!({}), "/")).unwrap();
        assert!(why.contains("Ingress a/old is older"), "{why}");
        assert_eq!(judge(&snapshot, ingress("one", json!({}), "/free")), None);
    }
}
