//! Selects the threads that run file operations of a request.

use weir_engine::Doer;
use weir_log::Level;

use super::aio::Aio;
use crate::request::Request;

/// The threads that `aio` selects.
pub fn doer(r: &mut Request) -> Doer {
    let name = match &r.conf().core.aio {
        Aio::Default => return r.event_loop.handle.files().doer(),
        Aio::Off => return Doer::Loop,
        Aio::Partly(most) => {
            let pool = r.event_loop.handle.files().default_pool().clone();
            return Doer::Partly(pool, *most);
        }
        Aio::Threads(name) => name.eval(r),
    };
    let files = r.event_loop.handle.files();
    match files.pool(&name) {
        Some(pool) => Doer::Pool(pool.clone()),
        None => {
            let name = String::from_utf8_lossy(&name);
            r.log(Level::Error, format_args!("thread pool \"{name}\" not found"));
            files.doer()
        }
    }
}
