//! The variables that every site has. nginx: ngx_http_variables.c, which documents each name.

use super::Variables;
use crate::answer::output::write_number;
use crate::request::Request;

mod answer;
mod files;
mod peers;
mod question;
mod times;

pub use answer::{body_bytes, status};
pub use question::credentials;

type Read = fn(&mut Request, &mut Vec<u8>) -> bool;

/// Defines them all.
pub fn define(variables: &mut Variables) {
    let tables = [question::TABLE, answer::TABLE, peers::TABLE, files::TABLE, times::TABLE];
    weir_values::builtin::define(variables);
    for (name, read) in tables.into_iter().flatten() {
        variables.define(name, *read);
    }
    variables.define_kept("request_id", question::request_id);
    let args = variables.refer(b"args");
    variables.settable(args, question::set_args);
    let limit_rate = variables.refer(b"limit_rate");
    variables.settable(limit_rate, answer::set_limit_rate);
}

fn put(out: &mut Vec<u8>, value: &[u8]) -> bool {
    out.extend_from_slice(value);
    true
}

/// The value, where there is one.
fn put_some(out: &mut Vec<u8>, value: Option<&[u8]>) -> bool {
    if let Some(value) = value {
        out.extend_from_slice(value);
    }
    value.is_some()
}

fn number(out: &mut Vec<u8>, n: u64) -> bool {
    write_number(n, out);
    true
}
