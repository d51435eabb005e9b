# frozen_string_literal: true

desc "What quantized types cost: SOURCE=directory TEXT=file, TYPES=q4_k_m,iq3_s, TOKENS=2048, CALIBRATION=file, WRITE=1"
task quality: :compile do
  require_relative "support/quality"
  Quality.new(ENV.fetch("SOURCE"), ENV.fetch("TEXT"), types: ENV.fetch("TYPES", "").split(/[\s,]+/),
                                                      tokens: Integer(ENV.fetch("TOKENS", "2048")),
                                                      calibration: ENV.fetch("CALIBRATION", nil))
         .run(write: ENV["WRITE"] == "1")
end
