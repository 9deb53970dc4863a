//! Looks at a client's first bytes without taking them. nginx: ngx_stream_ssl_preread_module.

use weir_log::Level;
use weir_proto::client_hello::{HelloProgress, parse};
use weir_proto::uri::host_valid;
use weir_upstream::fault;
use weir_values::regex::GaveUp;
use weir_values::{Subject, doing};

use crate::session::{Session, complain};
use crate::status::{Outcome, SessionError};

/// Reads until the client's first TLS message is whole, or it is clear that there is none.
pub async fn look(s: &mut Session) -> Outcome {
    let conf = s.conf();
    // nginx looks into no datagrams.
    let Some(client) = s.wire() else { return Ok(()) };
    client.set_deadline(Some(s.event_loop.handle.now() + conf.preread_timeout));
    loop {
        // Bytes that came with a balancer's header, or with a connection that was handed over, may be more.
        let seen = &s.unread[..s.unread.len().min(conf.preread_buffer)];
        if !seen.is_empty() {
            s.looked = true;
            match parse(seen) {
                HelloProgress::More => {}
                HelloProgress::Hello(hello) => {
                    s.hello = Some(hello);
                    break;
                }
                HelloProgress::Other => {
                    s.looked = false;
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
                    complain(s, &error, "prereading client data");
                }
                return Err(SessionError::ClientLeft);
            }
        }
    }
    client.set_deadline(None);
    let Some(hello) = &s.hello else { return Ok(()) };
    // What can be no host's name chooses no server, whatever a pattern among the names would match.
    let Ok(host) = host_valid(&hello.server_name) else { return Ok(()) };
    let name = hello.server_name.get(..host.len).unwrap_or_default().to_ascii_lowercase();
    choose(s, &name).map_err(|gave_up| {
        s.log(Level::Alert, format_args!("{gave_up}"));
        SessionError::Internal
    })
}

/// The server that the client names, among those of its address.
pub fn choose(s: &mut Session, name: &[u8]) -> Result<(), GaveUp> {
    let site = s.event_loop.site;
    let local = s.local().ip();
    let hosts = &site.bound(s.listen).at(|| local).hosts;
    if !hosts.single() && !name.is_empty() {
        doing::note("the preread phase", "", s.server);
        s.server = site.server(hosts.find(name, s)?);
    }
    Ok(())
}
