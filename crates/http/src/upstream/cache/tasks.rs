//! Cache loaders and managers, on one loop of the first worker. nginx has processes for them.

use std::path::PathBuf;
use std::rc::Rc;

use weir_cache::{loader, manager};
use weir_log::{Cause, Level};

use crate::event_loop::LoopState;
use crate::upstream::counts::COUNTS;

/// Starts the loaders and managers of the site's caches.
pub fn start(event_loop: &Rc<LoopState>) {
    let directories = event_loop.site.temp_paths().iter().map(|path| path.directory.clone());
    // All caches share them, so only the first loader that uses them sweeps them.
    let mut temporary: Vec<PathBuf> = directories.collect();
    for cache in &event_loop.site.caches {
        let (handle, managed) = (event_loop.handle.clone(), cache.clone());
        let cell = COUNTS.of(event_loop).cache(event_loop.site, cache);
        let known = Rc::downgrade(event_loop);
        let is_over = move || known.upgrade().is_none_or(|event_loop| event_loop.is_over());
        event_loop.handle.spawn(async move {
            while !is_over() {
                let next = manager::run(&managed, &handle).await;
                cell.iter().for_each(|cell| cell.evicted(&managed));
                handle.sleep(next).await;
            }
        });
        if cache.index.is_warm() {
            continue;
        }
        let (handle, loaded) = (event_loop.handle.clone(), cache.clone());
        let log = event_loop.site.main.core.error_log.clone();
        let temporary = match cache.settings.use_temp_path {
            true => std::mem::take(&mut temporary),
            false => Vec::new(),
        };
        event_loop.handle.spawn(async move {
            // nginx's loader starts after a minute, since it disturbs requests. This one does not.
            if let Err(error) = loader::run(loaded.clone(), temporary, handle).await {
                let path = loaded.settings.place.directory.display();
                let cause = Cause(&error);
                log.write(Level::Crit, None, format_args!("opendir() \"{path}\" failed {cause}"));
            }
        });
    }
}
