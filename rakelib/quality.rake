# frozen_string_literal: true

desc "What quantized types cost: SOURCE=dir TEXT=file, TYPES=q4_k_m,iq3_s, TOKENS=2048, CALIBRATION=, FILES=, WRITE=1"
task quality: :compile do
  require_relative "support/quality"
  Quality.new(ENV.fetch("SOURCE"), ENV.fetch("TEXT"), types: ENV.fetch("TYPES", "").split(/[\s,]+/),
                                                      tokens: Integer(ENV.fetch("TOKENS", "2048")),
                                                      calibration: ENV.fetch("CALIBRATION", nil),
                                                      files: ENV.fetch("FILES", nil))
         .run(write: ENV["WRITE"] == "1")
end

namespace :quality do
  desc "Let llama.cpp read what the quantizer writes: LLAMA_CPP_PYTHON=path, or the Python of rake bench"
  task llama_cpp: :compile do
    require_relative "support/written_files"
    abort "no Python with llama-cpp-python: set LLAMA_CPP_PYTHON, or run rake bench first" unless LlamaCpp.python
    problems = WrittenFiles.new.run
    abort "#{problems.size} files are read otherwise:\n#{problems.join("\n")}" unless problems.empty?
  end
end
