//! Batches are their owner's, within bounds, and outlive the server. What becomes of their requests, `tests/e2e/test_batches.py` shows.

use super::*;

const LIMITS: FileLimits = FileLimits { file_bytes: 1 << 20, all_bytes: 1 << 20 };

fn open(folder: &std::path::Path) -> Arc<Batches> {
    Batches::open(Place::named(folder).expect("free"), LIMITS).expect("readable")
}

fn asked(file: &str) -> BatchRequest {
    let body = format!(r#"{{"input_file_id": "{file}", "endpoint": "/v1/completions", "completion_window": "24h"}}"#);
    BatchRequest::read(body.as_bytes()).expect("valid")
}

async fn file(batches: &Batches, tenant: u64) -> String {
    let draft = batches.files().draft().await.expect("room");
    let purpose = crate::files::Purpose::Batch;
    let about = crate::files::About { tenant, filename: String::new(), purpose, lifetime_s: 3600 };
    draft.keep(about).await.expect("kept").id
}

/// As clients see it.
fn seen(batch: &Batch) -> serde_json::Value {
    serde_json::to_value(batch.object()).expect("JSON")
}

#[tokio::test]
async fn a_batch_is_its_owners_and_goes_on_after_a_restart() {
    let home = tempfile::tempdir().expect("a folder");
    let batches = open(home.path());
    let input = file(&batches, 1).await;
    let error = batches.create(asked(&input), 2).await.expect_err("another's file").to_string();
    assert!(error.contains("`input_file_id`"), "{error}");
    let batch = batches.create(asked(&input), 1).await.expect("room");
    let other = batches.create(asked(&input), 1).await.expect("room");
    assert_eq!(batches.list(1).iter().map(|batch| &batch.id).collect::<Vec<_>>(), [&batch.id, &other.id]);
    assert!(batches.list(2).is_empty());
    assert!(batches.get(&batch.id, 2).is_err() && batches.cancel(&batch.id, 2).await.is_err());
    let cancelled = batches.cancel(&other.id, 1).await.expect("it runs");
    assert_eq!(
        (cancelled.status, batches.cancel(&other.id, 1).await.expect("still").status),
        (Status::Cancelling, Status::Cancelling)
    );
    batches.close();
    drop(batches);

    let batches = open(home.path());
    assert_eq!(seen(&batches.get(&batch.id, 1).expect("there")), seen(&batch));
    assert_eq!(batches.get(&other.id, 1).expect("there").status, Status::Cancelling);
    let mut to_run = batches.to_run.lock().expect("nobody panics").take().expect("nobody has run them");
    assert_eq!([to_run.try_recv(), to_run.try_recv()], [Ok(batch.id), Ok(other.id)]);
    assert!(to_run.try_recv().is_err());
}

#[tokio::test]
async fn the_oldest_that_has_ended_makes_room() {
    let home = tempfile::tempdir().expect("a folder");
    let batches = open(home.path());
    let input = file(&batches, 1).await;
    let batch = batches.create(asked(&input), 1).await.expect("room");
    for number in 1..OF_TENANT_MAX {
        let id = format!("batch_{number}");
        let mut copy = batch.clone();
        (copy.id, copy.created_us) = (id.clone(), batch.created_us + number as u64);
        batches.kept().insert(id, Entry { batch: copy, cancel: CancellationToken::new() });
    }
    assert!(matches!(batches.create(asked(&input), 1).await, Err(ApiError::NoRoom { .. })));
    let of_another = file(&batches, 2).await;
    batches.create(asked(&of_another), 2).await.expect("room of its own");
    for id in ["batch_7", "batch_8"] {
        batches.change(id, |batch| batch.turn(Status::Failed, 1));
    }
    batches.create(asked(&input), 1).await.expect("room");
    assert!(batches.get("batch_7", 1).is_err() && batches.get("batch_8", 1).is_ok());
    assert_eq!(batches.list(1).len(), OF_TENANT_MAX);
}

#[test]
fn a_cancelled_batch_stays_so_until_its_end() {
    let mut batch = Batch::new("batch_1".to_owned(), 0, asked("file-1"), 5_000_000);
    batch.turn(Status::InProgress, 6);
    batch.turn(Status::Cancelling, 7);
    batch.turn(Status::Finalizing, 8);
    assert_eq!(batch.status, Status::Cancelling);
    batch.turn(Status::Cancelled, 9);
    let object = seen(&batch);
    let times = ["created_at", "in_progress_at", "finalizing_at", "cancelling_at", "cancelled_at", "completed_at"];
    let expected = [Some(5), Some(6), None, Some(7), Some(9), None];
    assert_eq!(times.map(|name| object[name].as_u64()), expected);
    assert_eq!(object["expires_at"], 5 + 24 * 3600);
}
