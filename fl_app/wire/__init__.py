"""Updates as bytes: lossless, self-describing, checked, and as small as their values allow."""

from fl_app.wire.change import apply_change, encode_change
from fl_app.wire.drawn import Drawn
from fl_app.wire.errors import CodecError
from fl_app.wire.update import decode, decode_masks, encode

__all__ = ["CodecError", "Drawn", "apply_change", "decode", "decode_masks", "encode", "encode_change"]
