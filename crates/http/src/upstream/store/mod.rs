//! `proxy_store`: writes answers to files of this server.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use weir_engine::{Chain, OpenFile};
use weir_log::{Cause, Level};

use super::passing::UpstreamConf;
use super::protocol::Protocol;
use super::relay::{self, Relayed};
use super::source::{Ahead, Source};
use super::transport::Transport;
use crate::answer::filters::into_bytes;
use crate::answer::headers::Headers;
use crate::files;
use crate::files::disk::{Put, on_disk, path as disk_path};
use crate::files::temp_file::{Keep, TempFile};
use crate::phases::Step;
use crate::request::Request;

mod conf;
mod directives;

pub use conf::Store;
pub(crate) use directives::store_directives;

/// Sends the head, which is filled in, and the body, and writes the body to a file. The body is
/// read to its end, even if the client leaves. The file is in place before the client gets the last
/// piece. `begun` was received with the head.
pub async fn relay<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    store: &'static Store,
    transport: Transport,
    protocol: &mut P,
    begun: Vec<u8>,
    buffering: bool,
) -> Relayed {
    let handle = r.event_loop.handle.clone();
    let ahead = Ahead { file: false, rate: None, within: passing.read_within(r) };
    let mut source = Source::new(transport, protocol, handle, passing, ahead);
    source.begin(begun);
    let mut target = Target::open(r, passing, store).await;
    r.output.unbuffered = !buffering;
    let mut step = r.send_head().err();
    if step.is_none() && !buffering {
        step = relay::send_head_on(r, &source).await;
    }
    loop {
        source.read_now();
        let mut chain = source.take();
        if let Some(target) = &mut target {
            chain = target.write(r, chain).await;
        }
        if source.done {
            break last(r, passing, source, target, chain, step).await;
        }
        if step.is_none() && !chain.is_empty() {
            let sending = async {
                r.send_body(chain, false).await?;
                if buffering { Ok(()) } else { r.flush_body().await }
            };
            let sent = source.ahead_of(pin!(sending)).await;
            relay::tell(r, &mut source);
            step = sent.err().map(|_| Step::Abort);
        }
        if source.is_empty() {
            let pieces = source.comes_in_pieces();
            if step.is_none() && source.ahead_of(pin!(r.pause_body(pieces))).await.is_err() {
                step = Some(Step::Abort);
            }
            if source.is_empty() && !source.done {
                source.wait().await;
            }
        }
    }
}

/// Ends the body: moves the file to its place, and then sends the rest to the client.
async fn last<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    mut source: Source<'_, P>,
    target: Option<Target>,
    chain: Chain,
    step: Option<Step>,
) -> Relayed {
    if let Some(broken) = source.broken() {
        // If sending has failed before, nothing more is sent.
        let step = match step {
            Some(step) => {
                relay::complain(r, broken);
                step
            }
            None => relay::broke(r, chain, broken).await,
        };
        return relay::finish(r, source, step);
    }
    if let Some(target) = target {
        target.finish(r).await;
    }
    let mut came = Headers::default();
    source.trailers(&mut came);
    relay::ends(r, source.take_count());
    relay::trailers(r, passing, came);
    let step = match step {
        Some(step) => step,
        None => match r.send_body(chain, true).await {
            Ok(()) => Step::Sent,
            Err(_) => Step::Abort,
        },
    };
    relay::finish(r, source, step)
}

/// Writes an empty file for an answer without a body.
pub async fn empty(r: &mut Request, passing: &'static UpstreamConf, store: &'static Store) {
    if let Some(target) = Target::open(r, passing, store).await {
        target.finish(r).await;
    }
}

/// The file while the body is being received.
struct Target {
    temp: TempFile,
    put: Put,
    end: u64,
    good: bool,
}

impl Target {
    /// Opens a temporary file. `None` if that fails, which is logged, or if the name is empty, as
    /// in nginx.
    async fn open(
        r: &mut Request,
        passing: &UpstreamConf,
        store: &'static Store,
    ) -> Option<Target> {
        let to = match store {
            Store::To(template) => template.eval(r).into_owned(),
            Store::AsRequested => {
                let mut path = Vec::new();
                let conf = r.conf();
                conf.core.map_path_into(r, &mut path).ok()?;
                path
            }
        };
        if let Store::To(template) = store
            && files::climbs(r, &to, template)
        {
            return None;
        }
        if to.is_empty() {
            return None;
        }
        files::check_links(r, &to).await.ok()?;
        let date = r.response.last_modified;
        let temp = match passing.temp_path.create(&r.event_loop.handle, Keep::WhileUsed).await {
            Ok(temp) => temp,
            Err(failed) => {
                let (path, cause) = (failed.path.display(), Cause(&failed.error));
                r.log(Level::Crit, format_args!("open() \"{path}\" failed {cause}"));
                return None;
            }
        };
        let put = Put {
            from: temp.path.clone(),
            to: disk_path(&to),
            access: passing.store_access,
            create_path: true,
            date,
        };
        Some(Target { temp, put, end: 0, good: true })
    }

    /// Writes data to the file, and returns them for the client.
    async fn write(&mut self, r: &Request, mut chain: Chain) -> Chain {
        let mut out = Chain::new();
        while let Some(segment) = chain.pop() {
            let bytes = into_bytes(segment);
            if self.good {
                self.good = write(r, &self.temp.file, &bytes, self.end).await;
                self.end += bytes.len() as u64;
            }
            out.push(bytes);
        }
        out
    }

    async fn finish(self, r: &mut Request) {
        let Target { temp, put, good, .. } = self;
        if good && on_disk(r, move |disk| disk.put(&put)).await.is_ok() {
            temp.keep();
        }
    }
}

async fn write(r: &Request, file: &Arc<OpenFile>, bytes: &Bytes, at: u64) -> bool {
    let handle = &r.event_loop.handle;
    let mut buf = handle.take_buf(bytes.len());
    buf.extend_from_slice(bytes);
    let (written, buf) = handle.files().write_at(file, buf, at).await;
    handle.give_buf(buf);
    if let Err(error) = &written {
        let text = format_args!("temporary file failed {} while reading upstream", Cause(error));
        r.log(Level::Crit, text);
    }
    written.is_ok()
}
