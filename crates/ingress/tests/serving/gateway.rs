//! Gateway API in a running server: what the specification says, asked over HTTP, TLS, TCP and UDP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use serde_json::{Value, json};
use weir_ingress::gateway::{Condition, Statuses};
use weir_ingress::{Settings, Snapshot};
use weir_testkit::{Dir, Response, Server};

use super::{behind, service, weir};

#[path = "gateway/http.rs"]
mod http;
#[path = "gateway/locations.rs"]
mod locations;
#[path = "gateway/sessions.rs"]
mod sessions;

/// The class and a Gateway with these listeners.
pub(super) fn gateway(name: &str, listeners: Value) -> String {
    let class = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": "weir" }, "spec": { "controllerName": "weir.internal/gateway" } });
    let gateway = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": { "name": name, "namespace": "a" },
        "spec": { "gatewayClassName": "weir", "listeners": listeners } });
    format!("---\n{class}\n---\n{gateway}\n")
}

/// A Gateway with one listener for HTTP.
pub(super) fn plain() -> String {
    gateway(
        "web",
        json!([{ "name": "http", "port": 8080, "protocol": "HTTP",
        "allowedRoutes": { "namespaces": { "from": "All" } } }]),
    )
}

pub(super) fn route(
    kind: &str,
    namespace: &str,
    name: &str,
    hosts: &[&str],
    rules: Value,
) -> String {
    let mut object = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "parentRefs": [{ "name": "web", "namespace": "a" }], "rules": rules } });
    if !hosts.is_empty() {
        object["spec"]["hostnames"] = json!(hosts);
    }
    format!("---\n{object}\n")
}

pub(super) fn to(service: &str) -> Value {
    json!([{ "name": service, "port": 80 }])
}

/// Serves manifests; ports 8080 to 8083 of listeners become free ones.
pub(super) fn serve(manifests: &str) -> Option<(Server, Statuses)> {
    let dir = Dir::new();
    serve_in(dir, manifests)
}

pub(super) fn serve_in(dir: Dir, manifests: &str) -> Option<(Server, Statuses)> {
    let settings =
        Settings { gateway_addresses: vec!["127.0.0.1".to_owned()], ..Settings::default() };
    let change = |mut text: String| {
        for (n, name) in ["%%PORT%%", "%%PORT1%%", "%%PORT2%%", "%%PORT3%%"].into_iter().enumerate()
        {
            text = text.replace(&format!("127.0.0.1:{}", 8080 + n), &format!("127.0.0.1:{name}"));
        }
        text
    };
    let (server, made) = super::serve_in(dir, manifests, settings, change)?;
    Some((server, made.statuses))
}

pub(super) fn ask(server: &Server, line: &str, host: &str, headers: &str) -> Response {
    let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n");
    server.connect().send(head).response()
}

/// Which server behind answered, or the status.
pub(super) fn from(server: &Server, line: &str, host: &str, headers: &str) -> String {
    let answer = ask(server, line, host, headers);
    match answer.status {
        200 => answer.body().lines().next().unwrap_or_default().to_owned(),
        status => status.to_string(),
    }
}

/// The conditions of a route at its first parent.
fn conditions<'s>(statuses: &'s Statuses, name: &str) -> &'s [Condition] {
    let found = statuses.routes.iter().find(|(id, _)| id.name == name);
    &found.unwrap_or_else(|| panic!("no status of {name}")).1[0].conditions
}

fn reason(statuses: &Statuses, name: &str, kind: &str) -> (bool, &'static str) {
    let found = conditions(statuses, name).iter().find(|one| one.kind == kind);
    found.map(|one| (one.holds, one.reason)).unwrap_or_default()
}

/// A Secret with a certificate of the testkit.
pub(super) fn secret(dir: &Dir, namespace: &str, name: &str, chain: &str, key: &str) -> String {
    let pem = |name: &str| base64(dir.read(name).as_bytes());
    let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": namespace },
        "data": { "tls.crt": pem(chain), "tls.key": pem(key) } });
    format!("---\n{object}\n")
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        let digit = |n: usize| match n <= group.len() {
            true => char::from(DIGITS[(word >> (18 - 6 * n)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

/// A request over TLS by OpenSSL's client: which server behind answered, or the status, or nothing.
pub(super) fn secured(server: &Server, port: usize, sni: &str, host: &str) -> Option<String> {
    shown(server, port, (sni, host), &[])
}

/// The same with more arguments of that client.
pub(super) fn shown(
    server: &Server,
    port: usize,
    (sni, host): (&str, &str),
    extra: &[&str],
) -> Option<String> {
    let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let args = [&["-servername", sni, "-quiet", "-ign_eof"], extra].concat();
    let said = weir_testkit::s_client(server.dir().path(), server.port_at(port), &args, &text)?;
    let Some((_, answer)) = said.split_once("HTTP/1.1 ") else { return Some(String::new()) };
    let status = answer.split(' ').next().unwrap_or_default();
    let body = answer.split("\r\n\r\n").nth(1).and_then(|body| body.lines().next());
    // What OpenSSL says itself comes behind.
    let body = body.and_then(|body| body.split("depth=").next());
    Some(if status == "200" { body.unwrap_or_default() } else { status }.to_owned())
}

/// A server behind that speaks TLS as www.example.org, or HTTP/2 without it.
pub(super) fn weir_behind(inside: &str) -> Option<Server> {
    let dir = weir_testkit::certified();
    Some(Server::start_in(dir, &weir()?, &format!("events {{ }} http {{ server {{ {inside} }} }}")))
}
