"""What servers answer, and what some arguments contain, as types. Made from openapi/baton.json by
tests/tools/client_types.py; openapi/baton.yaml says what each member means.

    status: baton.types.Status = baton.request(url, "GET", "/v1/status")

A reply may have more members than these: those of a newer server. Members that not every such reply
has are optional here."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union


class UpdateMappings(TypedDict, total=False):
    opened: int
    closed: int
    still_mapped: int


class UpdateTiming(TypedDict, total=False):
    receive_ms: float
    verify_ms: float
    commit_ms: float


class UpdateAdaptersItem(TypedDict, total=False):
    name: str
    revision: int
    valid: bool


class UpdateStagingItem(TypedDict, total=False):
    place: str
    needed: int
    available: int


class _Update(TypedDict):
    update_id: str
    phase: Literal["starting", "open", "receiving", "verifying", "verified", "committed", "aborted"]


class Update(_Update, total=False):
    coverage: Optional[Literal["whole", "as_before", "partial", "incomplete", "unknown"]]
    placement: Literal["replicated", "sharded"]
    partial: bool
    delta: bool
    base_version: Optional[str]
    base: Optional[Literal["unchecked"]]
    weight_version: Optional[str]
    serial: Optional[int]
    staging_nbytes: int
    nbytes_done: int
    nbytes_total: int
    nbytes_sent: int
    nbytes_per_s: Optional[int]
    n_tensors_done: int
    n_tensors_total: int
    tensor: Optional[str]
    lease_left_s: float
    deadline_left_s: float
    n_missing: int
    missing: List[str]
    n_non_finite: int
    non_finite: List[str]
    mappings: UpdateMappings
    checksums_on: Optional[Literal["gpu", "host"]]
    n_checksums: int
    timing: UpdateTiming
    error: Optional[Cause]
    changes: Optional[Changes]
    senders: List[Sender]
    n_unseen: int
    adapters: List[UpdateAdaptersItem]
    plan_digest: str
    boot_id: str
    staging: List[UpdateStagingItem]
    upstreams: List[Result]


class Sender(TypedDict, total=False):
    trainer_rank: Optional[int]
    place: Optional[str]
    gpu: Optional[str]
    n_tensors: int
    nbytes: int
    refused: Optional[ErrorCode]


class ChangesBefore(TypedDict, total=False):
    weight_version: str
    serial: int


class Changes(TypedDict, total=False):
    before: ChangesBefore
    n_changed: int
    n_unchanged: int
    n_not_sent: int
    n_not_compared: int
    n_newly_unchanged: int
    n_equal_to_another: int
    repeated: bool
    warnings: List[Literal["nothing_changed", "few_unchanged", "equal_to_another"]]


class UpdateRecordSeconds(TypedDict, total=False):
    wait: float
    receive: float
    proof: float
    commit: float
    whole: float


class UpdateRecord(TypedDict, total=False):
    update_id: Optional[str]
    weight_version: Optional[str]
    serial: Optional[int]
    outcome: Literal["committed", "aborted", "refused"]
    started_at: int
    ended_at: int
    seconds: UpdateRecordSeconds
    nbytes: int
    delta: bool
    base_version: Optional[str]
    base: Optional[Literal["unchecked"]]
    nbytes_made: int
    source: Optional[str]
    route: Optional[str]
    code: Optional[ErrorCode]
    message: Optional[str]
    param: Optional[str]
    peer: Optional[str]
    key: Optional[str]
    request_id: Optional[str]
    changes: Optional[Changes]
    count: int


class ErrorRecord(TypedDict, total=False):
    first_at: int
    last_at: int
    count: int
    code: ErrorCode
    message: Optional[str]
    param: Optional[str]
    route: Optional[str]


class StatusStageError(TypedDict, total=False):
    code: ErrorCode
    message: str
    retry_in_s: float


class StatusStage(TypedDict, total=False):
    memory: Literal["gpu", "host"]
    placement: Literal["replicated", "sharded"]
    window_nbytes: int
    n_devices: int
    state: Literal["unsynced", "ready", "asleep", "dropped"]
    plan_digest: str
    weight_version: Optional[str]
    serial: int
    handed_serial: int
    n_handoffs: int
    n_repairs: int
    handoff: Optional[Update]
    upstreams: List[Result]
    last_handoff_s: float
    error: Optional[StatusStageError]


class StatusServerArgs(TypedDict, total=False):
    enable_memory_saver: bool
    enable_return_routed_experts: bool
    base_gpu_id: int


class StatusReason(TypedDict, total=False):
    code: ErrorCode
    message: str


StatusWeightsSpec = TypedDict("StatusWeightsSpec", {"from": Literal["--model", "--manifest",
    "update"], "n_tensors": int}, total=False)


class StatusWeights(TypedDict, total=False):
    state: Literal["unsynced", "ready", "asleep", "dropped"]
    serial: Optional[int]
    update_id: Optional[str]
    weight_version: Optional[str]
    coverage: Optional[Literal["whole", "as_before", "partial", "incomplete", "unknown"]]
    spec: Optional[StatusWeightsSpec]
    dtype: str
    nbytes: int
    n_tensors: int
    plan_digest: str
    digest: Optional[str]
    versions_alive: int
    n_commits: int
    age_s: Optional[float]


class StatusStateSnapshots(TypedDict, total=False):
    keep: int
    newest: Optional[RecordedVersion]
    writing: bool
    written: int
    given_up: int
    failed: int
    error: Optional[str]


class StatusState(TypedDict, total=False):
    dir: str
    started_from: Literal["first_weights", "journal", "snapshot", "older_snapshot", "none"]
    journal: Optional[RecordedVersion]
    journal_failures: int
    snapshots: StatusStateSnapshots


class StatusAdmission(TypedDict, total=False):
    generate: Admission
    detokenize: Admission


class StatusEngine(TypedDict, total=False):
    name: str
    heartbeat_age_ms: float
    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_max: int
    n_steps: int
    n_prompt_tokens: int
    n_generated_tokens: int
    n_recomputed_tokens: int
    step_ms_max: float
    on_update: Literal["continue", "finish", "recompute"]
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"]
    max_logprobs: int


class StatusHttp(TypedDict, total=False):
    connections: int
    accepted: int
    requests: int
    rejected: int
    gone: int
    timeouts: int
    loop_lag_ms_max: float


class StatusModel(TypedDict, total=False):
    name: str
    path: str
    vocab_size: int
    max_model_len: int


class StatusCudaDevicesItem(TypedDict, total=False):
    index: int
    name: str
    uuid: str
    nbytes_total: int


class StatusCudaRanksItem(TypedDict, total=False):
    rank: int
    place: str
    uuid: str
    name: str
    checksums_on_gpu: bool


class StatusCuda(TypedDict, total=False):
    available: bool
    driver_version: Optional[str]
    devices: List[StatusCudaDevicesItem]
    ranks: List[StatusCudaRanksItem]
    reason: Optional[str]


class StatusNccl(TypedDict, total=False):
    available: bool
    version: Optional[str]
    library: Optional[str]
    reason: Optional[str]
    group: Group


class StatusNixl(TypedDict, total=False):
    library: str
    backends: List[str]
    ucx_version: Optional[str]
    devices: str
    transports: Optional[str]
    running: bool
    n_started: int


class Status(TypedDict, total=False):
    upstreams: Upstreams
    stage: Optional[StatusStage]
    boot_id: str
    version: str
    uptime_s: float
    server_args: StatusServerArgs
    life: Literal["starting", "serving", "leaving", "draining"]
    live: bool
    ready: bool
    control_ready: bool
    reason: Optional[StatusReason]
    recent_updates: List[UpdateRecord]
    recent_errors: List[ErrorRecord]
    weights: StatusWeights
    state: Optional[StatusState]
    seed: Optional[Seed]
    update: Optional[Update]
    pause: Optional[Pause]
    sleep: Sleep
    admission: StatusAdmission
    engine: Optional[StatusEngine]
    adapters: Optional[AdapterTotals]
    http: StatusHttp
    model: Optional[StatusModel]
    cuda: StatusCuda
    nccl: StatusNccl
    nixl: Optional[StatusNixl]


class UpstreamsNamesItemError(TypedDict, total=False):
    code: ErrorCode
    message: str


class UpstreamsNamesItem(TypedDict, total=False):
    name: str
    n_addresses: int
    last_answered_s: Optional[float]
    n_failures: int
    error: Optional[UpstreamsNamesItemError]


class Upstreams(TypedDict, total=False):
    min_ready: int
    n_serving: int
    n: int
    warning: Optional[str]
    names: List[UpstreamsNamesItem]
    list: List[Upstream]


class UpstreamOutstanding(TypedDict, total=False):
    generate: int
    text: int


class UpstreamError(TypedDict, total=False):
    code: ErrorCode
    message: str


class UpstreamErrorsItem(TypedDict, total=False):
    code: ErrorCode
    message: str
    at: int


class UpstreamProofChecksumsCommitted(TypedDict, total=False):
    n_checked: int
    n_equal: int
    n_different: int
    n_wrong: int


class UpstreamProofChecksums(TypedDict, total=False):
    state: Literal["unproven", "proven", "differs", "unknown"]
    n: int
    n_different: int
    n_compared: int
    committed: Optional[UpstreamProofChecksumsCommitted]


class UpstreamProof(TypedDict, total=False):
    state: Literal["unproven", "proven", "not_finite", "differs", "unknown"]
    weight_version: str
    n_compared: int
    largest_difference: Optional[float]
    checksums: Optional[UpstreamProofChecksums]


class Upstream(TypedDict, total=False):
    upstream: str
    dialect: Literal["baton", "vllm", "sglang"]
    origin: Literal["configuration", "request", "name"]
    name: Optional[str]
    state: Literal["serving", "not_ready", "unsynced", "fenced", "refused", "down", "unknown",
        "removed"]
    weight_version: Optional[str]
    serial: Optional[int]
    process: Optional[str]
    outstanding: UpstreamOutstanding
    n_granted: int
    n_missed: int
    last_heard_s: Optional[float]
    error: Optional[UpstreamError]
    last_error_at: Optional[int]
    errors: List[UpstreamErrorsItem]
    fence_paused: bool
    missing_adapters: List[str]
    proof: Optional[UpstreamProof]
    seeding_from: Optional[str]


class _UpstreamReady(TypedDict):
    ready: bool


class UpstreamReady(_UpstreamReady, total=False):
    reason: Literal["asleep", "paused", "not_ready", "unsynced", "fenced", "refused", "down",
        "unknown"]
    message: str


class GroupRanksItem(TypedDict, total=False):
    rank: int
    place: str
    uuid: str


class _Group(TypedDict):
    state: Literal["none", "joining", "joined", "failed", "stuck"]


class Group(_Group, total=False):
    transport: Optional[Literal["nccl"]]
    world_size: Optional[int]
    rank_offset: Optional[int]
    ranks: List[GroupRanksItem]
    nccl_version: Optional[str]
    nccl_library: Optional[str]
    trainer_nccl_version: Optional[str]
    bootstrap: Optional[str]
    master: Optional[str]
    group_name: Optional[str]
    error: Optional[Cause]
    nbytes_received: int
    n_broadcasts: int
    age_s: Optional[float]


class Pause(TypedDict, total=False):
    paused: bool
    state: Literal["pending", "held", "replacing", "resuming"]
    mode: Literal["keep", "wait", "abort"]
    new_requests: Literal["queue", "reject"]
    acknowledged: bool
    owner: str
    since: int
    held_s: float
    lease_s: Optional[int]
    until: Optional[int]
    epoch: int
    aborted: int
    running: int
    waiting: int
    upstreams: List[Result]


class Sleep(TypedDict, total=False):
    asleep: bool
    weights: Literal["unsynced", "ready", "asleep", "dropped"]
    kv_cache: Literal["present", "released"]


class Admission(TypedDict, total=False):
    running: int
    waiting: int
    concurrency: int
    concurrency_each: int
    queue: int
    granted: int
    refused: int
    cancelled: int
    wait_ms_max: float


class AdapterTotals(TypedDict, total=False):
    loaded: int
    loading: int
    users: int
    older_revisions: int
    nbytes: int
    nbytes_reserved: int
    max_loras: int
    max_lora_rank: int
    max_lora_bytes: int


class RecordedVersion(TypedDict, total=False):
    serial: int
    weight_version: str


class SleptFreed(TypedDict, total=False):
    weights_device: int
    weights_host: int
    staging: int
    kv_cache: int


class Slept(TypedDict, total=False):
    asleep: bool
    weights: Literal["unsynced", "ready", "asleep", "dropped"]
    kv_cache: Literal["present", "released"]
    level: int
    freed: SleptFreed
    kept: int
    aborted: int
    upstreams: List[Result]


class Woken(TypedDict, total=False):
    asleep: bool
    weights: Literal["unsynced", "ready", "asleep", "dropped"]
    kv_cache: Literal["present", "released"]
    restored: int
    upstreams: List[Result]


class Resumed(TypedDict, total=False):
    paused: Literal[False]
    was_paused: bool
    epoch: int
    upstreams: List[Result]


class UpstreamsProven(TypedDict, total=False):
    n: int
    n_proven: int
    n_checksums: int
    list: List[Upstream]


class PreflightChecksItem(TypedDict):
    check: Literal["cuda", "device", "allocator", "uuid", "mig", "pid_namespace", "ref_counter",
        "peer_access", "open", "event"]
    ok: Optional[bool]
    message: str
    place: Optional[str]


class Preflight(TypedDict):
    ok: bool
    checks: List[PreflightChecksItem]


class Plan(TypedDict, total=False):
    plan_id: str
    n_tensors: int
    nbytes: int
    covers_manifest: bool
    n_missing: int
    missing: List[str]


class WeightsChecked(TypedDict, total=False):
    algorithm: Literal["sha256"]
    weight_version: Optional[str]
    serial: Optional[int]
    checksums: Dict[str, str]
    n_tensors: int
    match: bool
    mismatches: List[str]
    n_compared: int
    n_skipped: int


class ChatRendered(TypedDict, total=False):
    request_id: str
    model: str
    token_ids: List[int]
    features: None
    sampling_params: Dict[str, Any]
    stream: bool
    stream_options: Optional[Dict[str, Any]]
    cache_salt: Optional[str]
    priority: Literal[0]
    kv_transfer_params: None


class UnloadedAdapter(TypedDict, total=False):
    status: Literal["ok"]
    lora_name: str
    revision: int
    n_users: int
    loaded_adapters: Dict[str, Optional[str]]


class CacheReset(TypedDict, total=False):
    reset: bool
    prefix_cache: None
    entries_dropped: int
    message: str


class _Ready(TypedDict):
    ready: bool


class Ready(_Ready, total=False):
    reason: ErrorCode
    message: str
    warning: Optional[str]


class WeightsTensorsItem(TypedDict, total=False):
    name: str
    dtype: str
    shape: List[int]
    nbytes: int
    checksum: Optional[str]
    version: Optional[str]
    serial: int


class Weights(TypedDict, total=False):
    weight_version: str
    serial: int
    boot_id: str
    plan_digest: str
    nbytes: int
    n_tensors: int
    tensors: List[WeightsTensorsItem]


WeightsDiffTensorsItemEqualTo = TypedDict("WeightsDiffTensorsItemEqualTo", {"name": str, "in":
    Literal["version_before", "this_version"]}, total=False)


class WeightsDiffTensorsItem(TypedDict, total=False):
    name: str
    change: Literal["changed", "unchanged", "not_sent", "not_compared"]
    newly_unchanged: bool
    equal_to: Optional[WeightsDiffTensorsItemEqualTo]


class WeightsDiff(TypedDict):
    weight_version: Optional[str]
    serial: Optional[int]
    changes: Optional[Changes]
    n_tensors: int
    tensors: List[WeightsDiffTensorsItem]
    next_offset: Optional[int]


class HandlesDevicesItemSlabsItem(TypedDict, total=False):
    handle: str
    nbytes: int


class HandlesDevicesItem(TypedDict, total=False):
    place: str
    uuid: str
    slabs: List[HandlesDevicesItemSlabsItem]
    slab: List[Optional[int]]
    offset: List[Optional[int]]


class _Handles(TypedDict):
    lease_id: str
    lease_s: int
    weight_version: str
    serial: int
    devices: List[HandlesDevicesItem]
    names: List[str]
    dtypes: List[str]
    shapes: List[List[int]]


class Handles(_Handles, total=False):
    boot_id: str
    plan_digest: str
    nbytes: int
    placement: Literal["replicated", "sharded"]
    aliases: Dict[str, str]


class Lease(TypedDict, total=False):
    lease_id: str
    lease_s: int
    weight_version: str
    serial: int
    served: bool


class FileLeaseAdaptersItem(TypedDict, total=False):
    name: str
    revision: int
    valid: bool


class _FileLease(TypedDict):
    lease_id: str
    lease_s: int
    weight_version: str
    serial: int
    nbytes: int


class FileLease(_FileLease, total=False):
    boot_id: str
    plan_digest: str
    digest: str
    n_tensors: int
    adapters: List[FileLeaseAdaptersItem]


class SeedSeededFrom(TypedDict, total=False):
    url: str
    weight_version: str
    serial: int
    boot_id: str
    peer_serial: int
    digest: str


class Seed(TypedDict, total=False):
    state: Literal["none", "seeding", "done", "ended"]
    peer: Optional[str]
    error: Optional[str]
    versions: int
    failures: int
    nbytes_read: int
    passes: bool
    seeded_from: Optional[SeedSeededFrom]


class Adapter(TypedDict, total=False):
    lora_name: str
    revision: int
    digest: str
    path: Optional[str]
    rank: int
    nbytes: int
    pinned: bool
    loaded_at: int
    n_users: int
    n_users_older: int


class _LoadedAdapter(TypedDict):
    status: Literal["ok"]
    lora_name: str
    revision: int


class LoadedAdapter(_LoadedAdapter, total=False):
    digest: str
    unchanged: bool
    replaced: bool
    pinned: bool
    rank: int
    nbytes: int
    n_users_older: int
    n_matched: int
    matched: List[str]
    n_unmatched: int
    unmatched: List[str]
    n_ignored: int
    ignored: List[str]
    n_missing: int
    missing: List[str]
    n_non_finite: int
    non_finite: List[str]
    n_config_keys_ignored: int
    base_changed: bool
    warning: Optional[str]
    loaded_adapters: Dict[str, Optional[str]]


class AdapterUsed(TypedDict, total=False):
    name: str
    revision: Optional[int]


class Span(TypedDict, total=False):
    version: str
    start: int
    end: int
    serial: int


class RelayedSpan(TypedDict):
    version: Optional[str]
    start: Optional[int]
    end: Optional[int]
    serial: Optional[int]
    exact: bool


class _GeneratedChoicesItemRoutedExperts(TypedDict):
    data: str
    shape: List[int]
    dtype: Literal["uint8", "int16", "int32", "uint16"]
    start: int


class GeneratedChoicesItemRoutedExperts(_GeneratedChoicesItemRoutedExperts, total=False):
    layers: List[int]


class GeneratedChoicesItemReplayBlocksItem(TypedDict, total=False):
    data: str
    shape: List[int]
    dtype: Literal["uint8", "int16", "int32"]
    pipeline_rank: int
    context_rank: int
    layers: List[int]


class _GeneratedChoicesItem(TypedDict):
    index: int
    token_ids: List[int]
    finish_reason: Optional[Literal["stop", "length", "abort", "error"]]
    weight_versions: List[Span]


class GeneratedChoicesItem(_GeneratedChoicesItem, total=False):
    stop_reason: Optional[Union[str, int]]
    logprobs: Optional[Dict[str, Any]]
    routed_experts: Optional[Union[str, GeneratedChoicesItemRoutedExperts]]
    replay_blocks: List[GeneratedChoicesItemReplayBlocksItem]
    sampling_mask: None


class Generated(TypedDict, total=False):
    request_id: str
    boot_id: str
    model: str
    adapter: Optional[AdapterUsed]
    created: int
    choices: List[GeneratedChoicesItem]
    output_mode: Literal["tokens"]
    prompt_logprobs: Optional[List[Any]]
    prompt_token_id_logprobs: None
    prompt_token_ids: Optional[List[int]]
    mm_placeholders: None
    kv_transfer_params: None
    ec_transfer_params: None
    metrics: None
    usage: Dict[str, Any]


class CompletionChoicesItem(TypedDict, total=False):
    index: int
    text: str
    finish_reason: Optional[str]
    stop_reason: Optional[Union[str, int]]
    logprobs: Optional[Dict[str, Any]]
    token_ids: Optional[List[Any]]
    prompt_token_ids: Optional[List[Any]]
    prompt_logprobs: Optional[List[Any]]
    routed_experts: Optional[str]
    weight_versions: List[Span]


class Completion(TypedDict, total=False):
    id: str
    object: Literal["text_completion"]
    service_tier: None
    system_fingerprint: str
    boot_id: str
    created: int
    model: str
    adapter: Optional[AdapterUsed]
    choices: List[CompletionChoicesItem]
    kv_transfer_params: None
    ec_transfer_params: None
    metrics: None
    usage: Dict[str, Any]


class ChatCompletionChoicesItemMessage(TypedDict, total=False):
    role: str
    content: str
    refusal: None
    annotations: None
    audio: None
    function_call: None
    reasoning: None
    tool_calls: List[Any]


class ChatCompletionChoicesItem(TypedDict, total=False):
    index: int
    message: ChatCompletionChoicesItemMessage
    finish_reason: Optional[str]
    stop_reason: Optional[Union[str, int]]
    logprobs: Optional[Dict[str, Any]]
    routed_experts: Optional[str]
    token_ids: Optional[List[int]]
    weight_versions: List[Span]


class ChatCompletion(TypedDict, total=False):
    id: str
    object: Literal["chat.completion"]
    service_tier: None
    system_fingerprint: str
    created: int
    model: str
    boot_id: str
    prompt_token_ids: Optional[List[int]]
    prompt_text: Optional[str]
    prompt_logprobs: None
    kv_transfer_params: None
    ec_transfer_params: None
    metrics: None
    choices: List[ChatCompletionChoicesItem]
    usage: Dict[str, Any]


class ErrorError(TypedDict):
    message: str
    type: Literal["invalid_request_error", "not_found_error", "conflict_error",
        "unprocessable_error", "server_error", "unavailable_error"]
    code: ErrorCode
    param: Optional[str]
    retryable: bool
    details: Optional[Dict[str, Any]]


class Error(TypedDict):
    error: ErrorError


class Cause(TypedDict, total=False):
    code: ErrorCode
    message: str
    param: Optional[str]
    retryable: bool


class Result(TypedDict):
    upstream: str
    ok: bool
    status: Optional[int]
    error: Optional[str]


class SamplingParams(TypedDict, total=False):
    n: Optional[int]
    best_of: Optional[int]
    max_tokens: Optional[int]
    min_tokens: Optional[int]
    temperature: Optional[float]
    top_p: Optional[float]
    top_k: Optional[int]
    min_p: Optional[float]
    repetition_penalty: Optional[float]
    frequency_penalty: Optional[float]
    presence_penalty: Optional[float]
    logit_bias: Optional[Dict[str, float]]
    allowed_token_ids: Optional[List[int]]
    bad_words: Optional[List[str]]
    seed: Optional[int]
    logprobs: Optional[int]
    prompt_logprobs: Optional[int]
    ignore_eos: Optional[bool]
    stop: Optional[Union[str, List[str]]]
    stop_token_ids: Optional[List[int]]
    skip_special_tokens: Optional[bool]
    include_stop_str_in_output: Optional[bool]
    spaces_between_special_tokens: Optional[bool]
    detokenize: Optional[bool]
    output_kind: Optional[int]
    skip_reading_prefix_cache: Optional[bool]
    routed_experts_prompt_start: Optional[int]
    extra_args: Optional[Dict[str, Any]]


class _ReplayLayout(TypedDict):
    pipeline_parallel_size: int
    context_parallel_size: int


class ReplayLayout(_ReplayLayout, total=False):
    num_layers_in_first_pipeline_stage: Optional[int]
    num_layers_in_last_pipeline_stage: Optional[int]
    num_leading_dense_layers: Optional[int]
    sequence_multiple: Optional[int]


class RolloutStep(TypedDict):
    trajectory_id: str
    step: int


ErrorCode = Literal["bad_request", "unauthorized", "forbidden", "not_found", "no_route",
    "method_not_allowed", "timeout", "conflict", "no_engine", "no_gpu", "no_nccl", "no_nixl",
    "group_left", "unsupported_in_proxy_mode", "no_upstreams", "update_closed", "needs_update",
    "precondition_failed", "lease_ended", "too_large", "target_too_long", "unsupported_media_type",
    "range_not_satisfiable", "expectation_failed", "misdirected_request", "manifest_mismatch",
    "incomplete_update", "checksum_mismatch", "non_finite_weights", "source_unreadable",
    "head_too_large", "client_gone", "internal_error", "engine_error", "not_recorded",
    "non_finite_logits", "cuda_error", "nccl_error", "nixl_error", "upstream_error",
    "not_handed_over", "upstream_auth_failed", "upstream_timeout", "overloaded", "starting",
    "draining", "aborted", "paused", "asleep", "no_weights", "seeding", "out_of_memory", "no_zmq",
    "http_version_not_supported", "insufficient_staging"]
