//! Storage in a folder of its own: invitations, people, restarts.

use std::path::Path;

use ronde_control::hub::api::PersonRole;
use ronde_control::hub::invite::Token;
use ronde_control::hub::{Moment, PersonId};

use super::*;

const NOW: Moment = Moment(1_000_000);

async fn open(folder: &Path) -> Storage {
    let config = HubConfig { folder: folder.to_owned(), database: None };
    Storage::open(&config).await.unwrap()
}

fn invite(token: Token, role: PersonRole, uses: u32) -> NewInvite {
    NewInvite { token, role, uses, expires: NOW.after(60), made_by: None }
}

#[tokio::test]
async fn an_invitation_lets_in_as_many_as_it_says_until_it_expires() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).await;
    let (token, late) = (Token([1; 16]), Token([2; 16]));
    storage.add_invite(&invite(token, PersonRole::Lender, 2), NOW).await.unwrap();
    storage.add_invite(&invite(late, PersonRole::Lender, 2), NOW).await.unwrap();
    assert_eq!(storage.join(&token, "k1", "Ann", NOW).await.unwrap(), PersonId(1));
    assert_eq!(storage.join(&token, "k2", "Bob", NOW).await.unwrap(), PersonId(2));
    for (token, at) in [(token, NOW), (late, NOW.after(60)), (Token([3; 16]), NOW)] {
        let refused = storage.join(&token, "k3", "Cid", at).await.unwrap_err();
        assert!(refused.to_string().starts_with("this invitation is not valid"), "{refused}");
    }
    let people = storage.people().await.unwrap();
    let names: Vec<&str> = people.iter().map(|person| &*person.name).collect();
    assert_eq!(names, ["Ann", "Bob"]);
}

#[tokio::test]
async fn of_many_who_use_one_invitation_at_once_only_one_gets_in() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).await;
    let token = Token([1; 16]);
    storage.add_invite(&invite(token, PersonRole::Borrower, 1), NOW).await.unwrap();
    let tries = (0..20).map(|number| {
        let storage = storage.clone();
        tokio::spawn(
            async move { storage.join(&token, &format!("k{number}"), "x", NOW).await.is_ok() },
        )
    });
    let mut let_in = 0;
    for one in tries.collect::<Vec<_>>() {
        let_in += usize::from(one.await.unwrap());
    }
    assert_eq!(let_in, 1);
    assert_eq!(storage.people().await.unwrap().len(), 1);
}

#[tokio::test]
async fn whoever_is_shut_out_stays_out_and_uses_up_no_invitation() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).await;
    let token = Token([1; 16]);
    storage.add_invite(&invite(token, PersonRole::Borrower, 2), NOW).await.unwrap();
    let person = storage.join(&token, "k1", "Ann", NOW).await.unwrap();
    assert!(storage.revoke(person, NOW).await.unwrap());
    assert!(!storage.revoke(person, NOW).await.unwrap(), "it is done already");
    assert_eq!(storage.caller("k1").await.unwrap(), None);
    assert!(storage.join(&token, "k1", "Ann", NOW).await.is_err());
    assert!(storage.join(&token, "k2", "Bob", NOW).await.is_ok());
}

#[tokio::test]
async fn a_second_invitation_raises_a_role_and_never_lowers_it() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).await;
    for (number, role, expected) in [
        (1, PersonRole::Lender, PersonRole::Lender),
        (2, PersonRole::Admin, PersonRole::Admin),
        (3, PersonRole::Borrower, PersonRole::Admin),
    ] {
        let token = Token([number; 16]);
        storage.add_invite(&invite(token, role, 1), NOW).await.unwrap();
        assert_eq!(storage.join(&token, "k", "Ann", NOW).await.unwrap(), PersonId(1));
        assert_eq!(storage.caller("k").await.unwrap().unwrap().role, expected);
    }
}

#[tokio::test]
async fn a_restart_loses_nothing_and_a_newer_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).await;
    let token = Token([1; 16]);
    storage.add_invite(&invite(token, PersonRole::Admin, 1), NOW).await.unwrap();
    drop(storage);
    let storage = open(folder.path()).await;
    storage.join(&token, "k", "Ann", NOW).await.unwrap();
    sqlx::query("INSERT INTO schema_versions (version) VALUES (99)")
        .execute(&storage.pool)
        .await
        .unwrap();
    drop(storage);
    let config = HubConfig { folder: folder.path().to_owned(), database: None };
    let error = Storage::open(&config).await.err().unwrap();
    assert!(error.to_string().contains("schema 99"), "{error}");
}

#[tokio::test]
async fn text_in_names_and_keys_is_only_text() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).await;
    let evil = "'); DROP TABLE people; --";
    let token = Token([1; 16]);
    storage.add_invite(&invite(token, PersonRole::Borrower, 1), NOW).await.unwrap();
    storage.join(&token, evil, evil, NOW).await.unwrap();
    let found = storage.caller(evil).await.unwrap().unwrap();
    assert_eq!((found.name.as_str(), storage.people().await.unwrap().len()), (evil, 1));
    assert_eq!(storage.caller("' OR '1' = '1").await.unwrap(), None);
}
