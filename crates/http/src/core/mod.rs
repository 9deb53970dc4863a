//! The core module: addresses, names, locations, paths of files, limits and timeouts.
//! nginx: ngx_http_core_module.

use weir_conf::Contexts;

use crate::config::module::Module;
use crate::config::scope::Scope;
pub use crate::site::core::Conf;

mod blocks;
mod directives;
pub mod enter;
mod errors;
mod limit_except;
mod server_conf;
mod set;
mod symlinks;
mod try_files;

pub use blocks::open_reserved;
pub use try_files::{handler as try_files, wanted as wants_try_files};

/// The module.
pub const MODULE: Module =
    Module { name: "http_core", directives: directives::DIRECTIVES, finish, ..Module::NEW };

/// Sets the default of `client_body_temp_path`, which is a directory of the server.
fn finish(scope: &mut Scope<'_, '_>) -> Result<(), weir_conf::Error> {
    let core = &scope.location.core;
    if scope.context == Contexts::HTTP
        && core.client_body_temp_path.directory.as_os_str().is_empty()
    {
        let path = scope.setup.default_temp_path("client_body_temp");
        Scope::change(&mut scope.location.core).client_body_temp_path = path;
    }
    Ok(())
}
