# frozen_string_literal: true

RSpec.describe Candle::Server::Multipart do
  # Gives as many bytes at a time as it was told.
  def read(body, step: 4096, limit: 1_000_000, type: "multipart/form-data; boundary=\"b-1\"")
    input = StringIO.new(body.b)
    input.define_singleton_method(:read) { |count = nil, *| super([count, step].compact.min) }
    described_class.read({ "CONTENT_TYPE" => type, "rack.input" => input }, limit: limit) do |form|
      form.transform_values { |value| value.is_a?(String) ? value : [value.name, value.type, value.bytes] }
    end
  end

  let(:bytes) { "#{Random.new(3).bytes(5000)}\r\n--b-\r\n--b-2\r\n" }
  let(:form) do
    "--b-1\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n" \
      "--b-1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a \\\"b\\\".bin\"\r\n" \
      "Content-Type: audio/wav\r\n\r\n".b + bytes + "\r\n--b-1--\r\n".b
  end

  it "reads fields and files, wherever the pieces are cut" do
    expected = { "purpose" => "batch", "file" => ["a \"b\".bin", "audio/wav", bytes] }
    [1, 2, 3, 7, 61, 4096].each { |step| expect(read(form, step: step)).to eq(expected) }
  end

  it "refuses what is cut off, too large or malformed" do
    { form[0...-6] => 400, form.sub("purpose", "purpose" * 2000) => 400, "--b-1xx" => 400, "" => 400,
      ("--b-1\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\nx\r\n" * 70) => 400,
      form.sub("name=\"file\"", "x=\"file\"") => 400,
      form.sub("batch\r\n", "\xff\r\n".b) => 400 }.each do |body, status|
      expect { read(body) }.to raise_error(Candle::Server::Problem) { |problem| expect(problem.status).to eq(status) }
    end
    expect { read(form, limit: 3000) }.to raise_error(Candle::Server::Problem, /larger than the 3000/)
    expect { read(form, type: "text/plain") }.to raise_error(Candle::Server::Problem, %r{multipart/form-data})
  end

  it "leaves no temporary file" do
    upload = nil
    described_class.read({ "CONTENT_TYPE" => "multipart/form-data; boundary=b-1", "rack.input" => StringIO.new(form) },
                         limit: 10_000) { |found| upload = found["file"] }
    expect(upload.file.path).to be_nil
  end
end
