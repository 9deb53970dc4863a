//! `ssl_preread`: reads a client's TLS ClientHello without consuming it. nginx:
//! ngx_stream_ssl_preread_module.

use weir_log::Level;
use weir_proto::client_hello::{HelloProgress, parse};
use weir_proto::uri::host_valid;
use weir_upstream::fault;
use weir_values::regex::GaveUp;
use weir_values::{Subject, doing};

use crate::session::{Session, log_client_error};
use crate::status::{Outcome, SessionError};

/// Reads until the ClientHello is complete, or the bytes cannot be one.
pub async fn read_client_hello(s: &mut Session) -> Outcome {
    let conf = s.conf();
    // nginx does not preread datagrams.
    let Some(client) = s.wire() else { return Ok(()) };
    client.set_deadline(Some(s.event_loop.handle.now() + conf.preread_timeout));
    loop {
        // The bytes that came with a PROXY header, or with a connection from `pass`, may be more
        // than the buffer.
        let seen = &s.unread[..s.unread.len().min(conf.preread_buffer)];
        if !seen.is_empty() {
            s.may_be_hello = true;
            match parse(seen) {
                HelloProgress::More => {}
                HelloProgress::Hello(hello) => {
                    s.hello = Some(hello);
                    break;
                }
                HelloProgress::Other => {
                    s.may_be_hello = false;
                    break;
                }
            }
        }
        let left = conf.preread_buffer.saturating_sub(s.unread.len());
        if left == 0 {
            s.log(Level::Error, format_args!("preread buffer full while prereading client data"));
            return Err(SessionError::BadRequest);
        }
        let (result, more) = client.recv(Vec::with_capacity(left)).await;
        match result {
            Ok(0) => return Err(SessionError::ClientLeft),
            Ok(_) => s.unread.extend_from_slice(&more),
            Err(error) => {
                // Like nginx, write nothing to the log for a silent client.
                if !fault::is_late(&error) {
                    log_client_error(s, &error, "prereading client data");
                }
                return Err(SessionError::ClientLeft);
            }
        }
    }
    client.set_deadline(None);
    let Some(hello) = &s.hello else { return Ok(()) };
    // A name that no host can have selects no server, even if a pattern among the server names
    // would match it.
    let Ok(host) = host_valid(&hello.server_name) else { return Ok(()) };
    let name = hello.server_name.get(..host.len).unwrap_or_default().to_ascii_lowercase();
    select_server(s, &name).map_err(|gave_up| {
        s.log(Level::Alert, format_args!("{gave_up}"));
        SessionError::Internal
    })
}

/// Selects the server with this name among those of the connection's address.
pub fn select_server(s: &mut Session, name: &[u8]) -> Result<(), GaveUp> {
    let site = s.event_loop.site;
    let local = s.local().ip();
    let hosts = &site.bound(s.listen).at(|| local).hosts;
    if !hosts.single() && !name.is_empty() {
        doing::note("the preread phase", "", s.server);
        s.server = site.server(hosts.find(name, s)?);
    }
    Ok(())
}
