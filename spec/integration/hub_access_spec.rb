# frozen_string_literal: true

RSpec.describe "Access to gated models" do
  it "is awaited, where the request for it is not answered yet" do
    LoneHub.open do |server|
      server.add("acme/tiny", "config.json", "{}")
      server.fault("/resolve/") do |response|
        response.status = 403
        said = "Your request to access model acme/tiny is awaiting a review from the repo authors."
        response.headers.replace("Content-Length" => "0", "X-Error-Code" => "GatedRepo", "X-Error-Message" => said)
      end
      expect { Candle::Hub.download("acme/tiny", "config.json") }
        .to raise_error(Candle::DownloadError, /acme.tiny is not accepted yet .*awaiting.*Wait until/) { |error|
          expect(error.message).not_to include("HF_TOKEN")
        }
    end
  end
end
