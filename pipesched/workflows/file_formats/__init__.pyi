from .file_format import FILE_FORMATS as FILE_FORMATS
from .file_format import FormatName as FormatName
from .file_format import file_schema as file_schema
