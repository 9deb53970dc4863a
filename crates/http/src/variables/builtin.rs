//! The variables that every site has. nginx: ngx_http_variables.c, which documents each name.

use super::Variables;
use crate::output::write_number;
use crate::request::Request;

type Read = fn(&mut Request, &mut Vec<u8>) -> bool;

/// Names and how each is read.
const TABLE: &[(&str, Read)] = &[
    ("uri", |r, out| put(out, &r.path)),
    ("document_uri", |r, out| put(out, &r.path)),
    ("args", |r, out| put(out, &r.args)),
    ("query_string", |r, out| put(out, &r.args)),
    ("pid", |r, out| number(out, u64::from(r.worker.identity.pid))),
    ("loop", |r, out| number(out, u64::from(r.worker.identity.index))),
    ("connection", |r, out| number(out, r.conn.number)),
    ("connection_requests", |r, out| number(out, r.conn.requests.get())),
    ("nginx_version", |_, out| put(out, crate::NGINX_VERSION.as_bytes())),
];

/// Defines them all.
pub fn define(variables: &mut Variables) {
    for (name, read) in TABLE {
        variables.define(name, *read);
    }
}

fn put(out: &mut Vec<u8>, value: &[u8]) -> bool {
    out.extend_from_slice(value);
    true
}

fn number(out: &mut Vec<u8>, n: u64) -> bool {
    write_number(n, out);
    true
}
