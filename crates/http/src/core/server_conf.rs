//! Directives with settings of the whole server.

use weir_conf::{Directive as Line, Error};

use crate::config::scope::Scope;
use weir_values::Template;

/// `listen`
pub fn listen(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let mut lines = crate::listen::parse(d, true, &mut s.setup.warnings)?;
    if s.first(d) {
        s.server.listens.clear();
    }
    s.server.listens.append(&mut lines);
    Ok(())
}

/// `server_name`
pub fn server_name(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.names.append(&mut crate::names::server_names(&mut s.setup.reading(), d)?);
    Ok(())
}

/// `client_header_timeout`
pub fn client_header_timeout(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.client_header_timeout = d.duration()?;
    Ok(())
}

/// `client_header_buffer_size`
pub fn client_header_buffer_size(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.head_limits.first = usize_of(d.size()?);
    Ok(())
}

/// `large_client_header_buffers`
pub fn large_client_header_buffers(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (count, size) = d.buffers()?;
    let limits = &mut s.server.head_limits;
    (limits.line, limits.total) = (usize_of(size), usize_of(count.saturating_mul(size)));
    Ok(())
}

/// `max_headers`
pub fn max_headers(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.head_limits.max_headers = usize_of(d.number()?);
    Ok(())
}

/// `ignore_invalid_headers`
pub fn ignore_invalid_headers(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.head_limits.ignore_invalid = d.flag()?;
    Ok(())
}

/// `merge_slashes`
pub fn merge_slashes(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.head_limits.merge_slashes = d.flag()?;
    Ok(())
}

/// `underscores_in_headers`
pub fn underscores_in_headers(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.head_limits.underscores = d.flag()?;
    Ok(())
}

/// `client_body_early_read`
pub fn early_read(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    if s.first(d) {
        s.server.early_read.clear();
    }
    for word in &d.args {
        let value = Template::new(&mut s.setup.variables, &word.bytes);
        s.server.early_read.push(value.map_err(|text| d.error_at(word, text))?);
    }
    Ok(())
}

/// `server_names_hash_bucket_size`
pub fn names_bucket(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.setup.names_bucket = Some(d.number()?);
    Ok(())
}

/// `connection_pool_size`: weir has no such pool, but nginx checks other sizes against it.
pub fn connection_pool_size(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.server.connection_pool = pool_size(d)?;
    Ok(())
}

/// `request_pool_size`
pub fn request_pool_size(_: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    pool_size(d).map(drop)
}

fn pool_size(d: &Line) -> Result<u64, Error> {
    let size = d.size()?;
    if size < 112 {
        return Err(d.error("the pool size must be no less than 112"));
    }
    if size % 16 != 0 {
        return Err(d.error("the pool size must be a multiple of 16"));
    }
    Ok(size)
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
