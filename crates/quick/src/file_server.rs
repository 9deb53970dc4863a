//! `weir file-server`.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::place::{self, head, panel_server, quoted};
use crate::{QuickError, Written, serve};

/// Serves the files of a directory, but those whose names begin with a dot. Ctrl-C ends it
#[derive(Debug, Parser)]
#[command(name = "weir file-server", bin_name = "weir file-server")]
pub struct FileServer {
    /// The directory
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Lists directories that have no index.html
    #[arg(long)]
    browse: bool,
    /// PORT on loopback, :PORT on all addresses, or ADDRESS:PORT [default: 8080, or the next free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where the live panel listens, in the same words [default: 8090, or the next free port]
    #[arg(long, value_name = "ADDRESS")]
    panel: Option<String>,
    /// Prints the configuration, and serves nothing
    #[arg(long)]
    show_config: bool,
}

/// Runs `weir file-server`. Returns the exit status.
pub fn file_server(options: FileServer) -> i32 {
    serve("weir file-server", options.show_config, written(&options))
}

/// The MIME types of common files. Browsers download others.
const TYPES: &str = "    types {
        text/html                html htm;
        text/css                 css;
        text/plain               txt log md;
        text/csv                 csv;
        text/javascript          js mjs;
        application/json         json map;
        application/manifest+json webmanifest;
        application/wasm         wasm;
        application/xml          xml;
        application/pdf          pdf;
        application/zip          zip;
        image/avif               avif;
        image/gif                gif;
        image/jpeg               jpg jpeg;
        image/png                png;
        image/svg+xml            svg;
        image/webp               webp;
        image/x-icon             ico;
        font/woff                woff;
        font/woff2               woff2;
        audio/mpeg               mp3;
        audio/ogg                ogg;
        video/mp4                mp4;
        video/webm               webm;
    }
    default_type application/octet-stream;
    charset utf-8;
    gzip on;
    gzip_types text/css text/plain text/javascript application/json application/wasm image/svg+xml;
";

/// The directory itself or the parent that the workers of root cannot enter, if there is one.
fn closed(dir: &Path) -> Option<&Path> {
    const ENTER: u32 = 0o001;
    let is_closed = |path: &&Path| path.metadata().is_ok_and(|of| of.mode() & ENTER == 0);
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| dir.ancestors().filter(is_closed).last()).flatten()
}

fn written(options: &FileServer) -> Result<Written, QuickError> {
    let failed = |e| QuickError::File(options.dir.clone(), e);
    let dir = options.dir.canonicalize().map_err(failed)?;
    if !dir.is_dir() {
        return Err(QuickError::File(dir, std::io::ErrorKind::NotADirectory.into()));
    }
    let address = place::address(options.listen.as_deref(), 8080, &[], options.show_config)?;
    let panel = place::panel(options.panel.as_deref(), &[address.port()], options.show_config)?;
    let state = place::state()?;
    let mut text = head(&state, "file-server", address)?;
    text += TYPES;
    let browse = if options.browse { "on" } else { "off" };
    let _ = write!(
        text,
        "
    server {{
{}        status_zone files;
        root {};
        index index.html;
        autoindex {browse};
        sendfile on;

        # Not .git and .env, but .well-known.
        location ~ /\\.(?!well-known(/|$)) {{
            return 404;
        }}
    }}
",
        address.lines(""),
        quoted(&dir)?
    );
    text += &panel_server(panel);
    text += "}\n";
    let closed = closed(&dir).map_or(String::new(), |path| {
        format!(
            "  note       {} is closed to the user nobody, as whom weir serves: clients get 403\n",
            path.display()
        )
    });
    let greeting = format!(
        "weir file-server   http://{}/ serves {}
  panel      http://{}/
{closed}  to stop    Ctrl-C; --show-config prints the configuration, to begin your own\n",
        address.shown(),
        dir.display(),
        panel.shown()
    );
    Ok(Written { text, greeting, state })
}
