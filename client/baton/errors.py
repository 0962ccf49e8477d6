"""What this package raises."""



class BatonError(Exception):
    """The server refused, or could not be reached, or this process has no GPU for what it asks
    for. `message` is in the server's words if `status` is not 0."""

    def __init__(self, message, status=0, code="", param=None, retryable=False, details=None,
                 request_id=""):
        self.message, self.status, self.code, self.param = message, status, code, param
        self.retryable, self.details, self.request_id = retryable, details, request_id
        where = f" (at {param})" if param else ""
        what = f"{status} {code}: " if status else ""
        listed = ""
        if code == "incomplete_update" and details and details.get("missing"):
            listed = f"; missing: {', '.join(details['missing'][:8])}"
        super().__init__(f"{what}{message}{where}{listed}")
