//! A temporary directory for a test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory. It is removed when this is dropped, unless the test failed.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// Creates a directory with a subdirectory `logs`. It is readable for workers of the user
    /// nobody.
    #[expect(clippy::new_without_default, reason = "it makes something on disk")]
    pub fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // All paths have the same length, so that answers with a path do as well.
        let path = std::env::temp_dir().join(format!("weir-test-{}-{n:03}", std::process::id()));
        // A failed test in an earlier process with the same id may have left it.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("logs")).expect("a directory for the test");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its permissions");
        Dir(path)
    }

    /// The directory that this process created before it executed another program.
    pub fn of_before(path: &Path) -> Dir {
        Dir(path.to_owned())
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, and creates its parent directories.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("a directory in the test's");
        }
        fs::write(&path, text).expect("a file in the test's directory");
        path
    }

    /// The content of a file as text. Empty if the file does not exist.
    pub fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.file(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the test's files stay in {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
