//! Containers that several delete.

use std::thread;

use crate::setup::{spec, with_each_engine};

/// As it is after the caller of a runtime was killed: the runtime that it called is still at work.
#[test]
fn a_container_that_two_delete_at_once_is_deleted_by_both() {
    with_each_engine(|engine, image| {
        for _ in 0..10 {
            let record = engine.prepare(spec(image, "sleep 1000")).unwrap().start().unwrap();
            let delete = || record.runtime.delete(&record.id);
            let results = thread::scope(|scope| {
                [(); 3].map(|()| scope.spawn(delete)).map(|thread| thread.join().unwrap())
            });
            for result in results {
                result.unwrap();
            }
            engine.remove(&record).unwrap();
        }
    });
}
