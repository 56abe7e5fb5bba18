//! Failures that were reported of other shops and locks: does the same input do harm here?
//!
//! | report | what went wrong there | test |
//! |---|---|---|
//! | spree #3792 | the last unit was sold twice | conformance: `the_last_unit_goes_to_one_of_two` |
//! | vendure #3508 | a re-check under the lock read an old snapshot | conformance: `never_oversells_when_trusted` (MariaDB) |
//! | medusa #16502 | two lines of one SKU each passed alone | [`lines_of_one_sku`]; bad_input/purchase |
//! | woocommerce PR 67931 | a replaced hold and its successor were both paid | [`replaced`] |
//! | hfbin/Seckill #2, #14 | repeated clicks ate stock | conformance: `one_user_gets_one_order` |
//! | miaosha #91, dianping #1 | Redis deducted, no order | boundary: `crash_between_deduct_and_insert` |
//! | one-stop-project #280 | compensation missed a failed COMMIT | boundary: `cut_at_commit` |
//! | Attendize #1000 | holds never came back | [`closer`]: `a_closer_that_was_away_past_the_pay_window_gives_the_units_back` |
//! | woocommerce #66244 | one transition never restocked | order.rs: `every_state_and_event_pair_is_decided`; books (each CLOSED order) |
//! | woocommerce #22489, adyen-magento2 #1174 | restocked twice | [`closer`]: `a_cancellation_and_two_closers_at_once_give_back_once` |
//! | mollie/WooCommerce #1252 | a late payment revived a cancelled order | rest/payment, [`replaced`] |
//! | pretix #74 | charged, nothing to ship | boundary: `payment_against_close`; rest/payment |
//! | springboot-coupon-system #68 | a user was marked and never served | boundary: `crash_between_deduct_and_insert` (dedupe and deduct are one script) |
//! | springboot-seckill #7 | markers were lost in a flush | boundary: `flushed_in_mid_sale` |
//! | CAP #1257, #1682 | several nodes sent one message, the lease too short | outbox/crash: paused past its lease |
//! | scs-outbox PR 94 | published, mark failed, sent again | outbox/crash: killed after its XADD |
//! | sentry PR 84362 | a poison row blocked the outbox | outbox: `a_poison_event_dies_after_its_attempts_and_keeps_no_other_waiting` |
//! | KNeegcyao/dianping #2 | warm-up at start-up put sold stock back | [`restart`]; gate: `only_a_complete_warm_up_opens_and_none_puts_stock_back` |
//! | sqlx #3132 | a pool collapsed under thousands of waiters | outage/crowd: 2,000 buyers, five connections |
//! | openfoodnetwork #829 | deadlock between order and stock rows | conformance: `crossed_skus_do_not_deadlock` |
//! | redis #6062 | acknowledged writes were lost in a failover | boundary: `stale_replica` |
//! | redis-rs #1252 | the next command got the previous reply | [`late_reply`] |
//! | redis #8478 | half a script stayed | gate/faults: `a_wrong_type_on_any_key_leaves_nothing_half_done` |
//! | redlock-rb #27 | NOSCRIPT after a restart | locks/redis_set_nx: `survives_a_script_flush` |

mod closer;
mod late_reply;
mod lines_of_one_sku;
mod replaced;
mod restart;
