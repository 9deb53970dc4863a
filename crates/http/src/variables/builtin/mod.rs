//! The variables of every site. nginx: ngx_http_variables.c. Its reference documents each name.

use weir_values::Variables;

use crate::request::Request;

mod answer;
mod files;
mod peers;
mod question;
mod times;

pub use answer::{body_bytes, status};
pub use question::{credentials, set_args};

/// Defines these variables.
pub fn define(variables: &mut Variables<Request>) {
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
